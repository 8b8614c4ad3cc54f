r"""The training set of a run: rows of any source become `prompt` (messages) and `answer`.

    dataset_name: data/gsm8k.jsonl
    prompt_format: qwen-math

Columns are found by name: DAPO-Math has `prompt` and `solution`, GSM8K `question` and `answer`, MATH `problem` and
`solution`, NuminaMath and Big-Math `problem` and `answer`. Of a worked solution the final answer is taken: what
follows the last `####`, else the last `\boxed{}`. Nothing is cut or mended silently: a row that cannot be used is
dropped, and counted, by reason and number, in a report.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..rewards.answers import final_answer
from .load import Rows, find_columns, holds_messages
from .prompts import CONTENTS, check_chat_template, control_markers, control_tokens, make_prompt
from .report import BadDataError, DataReport

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

NO_ANSWER = ("", "notfound", "proof")  # the latter two are NuminaMath's
LONGEST_ANSWER = 400  # characters; text beyond that, with no box, is a solution whose answer nobody marked
# What TRL calls things of its own, so that a reward function cannot get a column of that name
RESERVED = ("completion", "completions", "completion_ids", "image", "images", "trainer_state", "environments")
RESERVED += ("log_extra", "log_metric")
BATCH = 1000  # prompts tokenized at once


def make_training_set(
    rows: Rows,
    name: str,
    tokenizer: "PreTrainedTokenizerBase",
    prompt_format: str | None = None,
    problem_column: str | None = None,
    answer_column: str | None = None,
    max_prompt_length: int | None = None,
    on_bad_rows: str = "drop",
    unreadable: Callable[[list[str]], list[int]] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> tuple["Dataset", DataReport]:
    """
    Makes prompts and answers of rows.

    Args:
        rows ([`~sage_trl.data.load.Rows`]):
            The rows.
        name (`str`):
            What the dataset is called in messages.
        tokenizer (`PreTrainedTokenizerBase`):
            Tokenizer of the model, with its chat template.
        prompt_format (`str`, *optional*):
            Name of the format in which a problem is put. Not given if, and only if, the problems are messages already.
        problem_column (`str`, *optional*):
            Column of the problems. If not given, the first of `problem`, `question` and `prompt` that there is, and
            `prompt` before the others where it holds messages.
        answer_column (`str`, *optional*):
            Column of the answers. If not given, the first of `answer`, `expected_answer` and `solution` that there is.
        max_prompt_length (`int`, *optional*):
            Rows whose prompt has more tokens, chat template included, are dropped.
        on_bad_rows (`str`, *optional*, defaults to `"drop"`):
            `"drop"`, or `"error"` to refuse the dataset for the first row that would be dropped.
        unreadable (`Callable`, *optional*):
            Takes answers and returns the positions of those that the reward cannot read; these rows are dropped.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Arguments of the chat template.

    Returns:
        `tuple[Dataset, DataReport]`: the rows that are left, with `prompt`, `answer` and all columns that the source
        has under other names; and what became of the others.

    Raises:
        [`ValueError`]: a column is not there, or a setting does not fit the data.
        [`BadDataError`]: no row is left, a row could not be read at all, or `on_bad_rows` is `"error"` and one is bad.
    """
    report = DataReport(name, rows.unit, read=len(rows.numbers) + len(rows.unparsed), unparsed=rows.unparsed)
    if not rows.numbers:
        raise BadDataError(f"'{name}' has no rows{report.first_unparsed}.", report)
    problem_column, answer_column = find_columns(rows, name, problem_column, answer_column)
    report.columns = f"; problems from '{problem_column}', answers from '{answer_column}'"
    reserved = [column for column in rows.names if column in RESERVED]
    if reserved:
        report.columns += f"; left out, as TRL has other things of that name: {', '.join(reserved)}"
    problems, answers = rows.columns[problem_column][:], rows.columns[answer_column][:]
    as_messages = holds_messages(problems)
    if as_messages == (prompt_format is not None):
        raise ValueError(
            f"`prompt_format` is '{prompt_format}', but column '{problem_column}' of '{name}' holds messages, which "
            "are kept as they are. Leave it unset."
            if as_messages
            else f"`prompt_format` is not set, and column '{problem_column}' of '{name}' holds text. Set how it is "
            "put to the model: 'qwen-math', 'r1', 'tags' or 'plain'."
        )

    check_chat_template(tokenizer.chat_template, tokenizer.name_or_path)
    sieve = _Sieve(rows.numbers, report)
    read_problem = _read_messages if as_messages else _read_problem
    problems = sieve.read(problems, read_problem)
    answers = sieve.read(answers, read_answer)
    if unreadable is not None:
        # Each answer once: DAPO-Math has 17,000 rows and a few thousand answers
        distinct = list(dict.fromkeys(answers[i] for i in sieve.kept))
        cannot = {distinct[position] for position in unreadable(distinct)}
        sieve.drop([i for i in sieve.kept if answers[i] in cannot], "the math reward cannot read the answer")
    if as_messages:
        prompts = problems
    else:
        markers = control_markers(tokenizer, prompt_format)
        prompts = {i: make_prompt(problems[i], prompt_format, markers) for i in sieve.kept}
        broken = [i for i in sieve.kept if any(marker in problems[i] for marker in markers)]
        sieve.warn(broken, "the model's own markup in the problem, broken by a space")
    _measure(sieve, prompts, tokenizer, max_prompt_length, chat_template_kwargs or {}, as_messages)
    _find_repeats(sieve, problems, answers)

    report.rows = [rows.numbers[i] for i in sieve.kept]
    report.check(on_bad_rows)
    made = {"prompt": [prompts[i] for i in sieve.kept], "answer": [answers[i] for i in sieve.kept]}
    return _assemble(rows, sieve.kept, made, name), report


def read_answer(value: Any) -> str:
    r"""
    The final answer in a value of the answer column.

    Args:
        value:
            A bare answer (`42`, `\frac{1}{2}`), a number, or a worked solution with `#### 42` or a box.

    Returns:
        `str`: the answer.

    Raises:
        [`ValueError`]: there is none; the message is the reason, for the report.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    text = _read_text(value, "answer")
    answer = final_answer(text)
    if answer.lower() in NO_ANSWER:
        raise ValueError("the answer is missing or empty")
    if answer == text.strip() and len(answer) > LONGEST_ANSWER:
        raise ValueError("the worked solution has no final answer: no box, no ####")
    return answer


def _read_problem(value: Any) -> str:
    return _read_text(value, "problem")


def _read_text(value: Any, what: str) -> str:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise ValueError(f"the {what} is missing or empty")
    if not isinstance(value, str):
        raise ValueError(f"the {what} is not text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the {what} is not valid Unicode") from None
    return value


def _read_messages(value: Any) -> list[dict[str, Any]]:
    if not value:
        raise ValueError("the prompt is missing or empty")
    if not _is_messages(value):
        raise ValueError("the prompt is not messages with `role` and `content`")
    return value


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, dict) and isinstance(part.get("role"), str) and part.get("content") for part in value
    )


class _Sieve:
    """The positions of the rows that are still in, and the report of how the others left."""

    def __init__(self, numbers: Sequence[int], report: DataReport):
        self.numbers = numbers
        self.report = report
        self.kept = list(range(len(numbers)))

    def read(self, values: list, reader: Callable[[Any], Any]) -> dict[int, Any]:
        """Position -> what `reader` makes of the value. A row where it raises [`ValueError`] is dropped."""
        made, reasons = {}, {}
        for i in self.kept:
            try:
                made[i] = reader(values[i])
            except ValueError as error:
                reasons.setdefault(str(error), []).append(i)
        for reason, rows in reasons.items():
            self.drop(rows, reason)
        return made

    def drop(self, rows: list[int], reason: str) -> None:
        self._note(self.report.dropped, rows, reason)
        gone = set(rows)
        self.kept = [i for i in self.kept if i not in gone]

    def warn(self, rows: list[int], reason: str) -> None:
        self._note(self.report.warned, rows, reason)

    def _note(self, notes: dict[str, list[int]], rows: list[int], reason: str) -> None:
        if rows:
            notes[reason] = [self.numbers[i] for i in rows]


def _measure(
    sieve: _Sieve,
    prompts: dict[int, list],
    tokenizer: "PreTrainedTokenizerBase",
    max_prompt_length: int | None,
    template_kwargs: dict[str, Any],
    as_messages: bool,
) -> None:
    """Drops prompts that are too long, and finds those that hold other control tokens than their roles account for."""
    control = set(control_tokens(tokenizer).values())
    expected: dict[tuple[str, ...], list[int]] = {}
    too_long, marked = [], []
    longest = 0
    for i, ids in _tokenized(sieve.kept, prompts, tokenizer, template_kwargs):
        if max_prompt_length is not None and len(ids) > max_prompt_length:
            too_long.append(i)
            longest = max(longest, len(ids))
        roles = tuple(message["role"] for message in prompts[i])
        if roles not in expected:
            # The same prompt with harmless contents. A system message of the format is ours, and harmless.
            plain = [
                message if message["role"] == "system" and not as_messages else message | {"content": CONTENTS[0]}
                for message in prompts[i]
            ]
            expected[roles] = _control_ids(next(_tokenized([i], {i: plain}, tokenizer, template_kwargs))[1], control)
        if _control_ids(ids, control) != expected[roles]:
            marked.append(i)
    # Messages are taken as they are, so there it is a warning
    if as_messages:
        sieve.warn(marked, "control tokens of the model typed in a message, kept")
    else:
        sieve.drop(sorted({*marked} - {*too_long}), "the problem holds control tokens of the model")
    if too_long:
        reason = f"the prompt is longer than `max_prompt_length` = {max_prompt_length} tokens (longest: {longest})"
        sieve.drop(too_long, reason)


def _control_ids(ids: list[int], control: set[int]) -> list[int]:
    return [token for token in ids if token in control]


def _tokenized(
    rows: list[int], prompts: dict[int, list], tokenizer: "PreTrainedTokenizerBase", template_kwargs: dict[str, Any]
) -> Iterator[tuple[int, list[int]]]:
    from jinja2 import TemplateError

    for start in range(0, len(rows), BATCH):
        batch = rows[start : start + BATCH]
        try:
            encoded = tokenizer.apply_chat_template(
                [prompts[i] for i in batch],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                **template_kwargs,
            )
        except TemplateError as error:  # as Gemma's, of a system message
            raise ValueError(
                f"the chat template of '{tokenizer.name_or_path}' refuses the prompts: {error}. Choose a "
                "`prompt_format` without a system message ('r1', 'plain') if that is why."
            ) from error
        yield from zip(batch, encoded["input_ids"], strict=True)


def _find_repeats(sieve: _Sieve, problems: dict[int, Any], answers: dict[int, str]) -> None:
    seen: dict[str, str] = {}
    same, other = [], []
    for i in sieve.kept:
        key = " ".join(str(problems[i]).split())
        if key in seen:
            (same if answers[i] == seen[key] else other).append(i)
        else:
            seen[key] = answers[i]
    sieve.warn(same, "the problem stands there before, with the same answer")
    sieve.warn(other, "the problem stands there before, with another answer")


def _assemble(rows: Rows, kept: list[int], made: dict[str, list], name: str) -> "Dataset":
    import pyarrow
    from datasets import Dataset, concatenate_datasets

    new = Dataset.from_dict(made)
    others = [column for column in rows.names if column not in made and column not in RESERVED]
    if not others:
        return new
    if isinstance(rows.columns, Dataset):
        return concatenate_datasets([new, rows.columns.select_columns(others).select(kept)], axis=1)
    columns = {column: [rows.columns[column][i] for i in kept] for column in others}
    for column, values in columns.items():
        try:
            pyarrow.array(values)
        except (pyarrow.ArrowException, UnicodeEncodeError) as error:
            raise ValueError(
                f"column '{column}' of '{name}' cannot be a column of a dataset: {error}. Give its values one type, "
                "or leave it out."
            ) from error
    return concatenate_datasets([new, Dataset.from_dict(columns)], axis=1)
