r"""Prompt formats: what a model is told, how a problem is put to it, and where it has to write its answer.

Training and evaluation both take their prompts from here, and a trained model's folder records which format it was
trained with (`sage_prompt.json`), so the two cannot differ. No format has stop strings: a completion ends with the
model's own end of turn, in training and in evaluation alike.

A problem is foreign text. Whatever in it could be read as the model's own markup (special tokens, turn markers of its
chat template, tags of the format) is broken by one space after its first character: `<|im_end|>` becomes
`< |im_end|>`. It stays readable, and it can no longer end the user's turn.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..imports import nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RECORD = "sage_prompt.json"
BOXED = r"Please reason step by step, and put your final answer within \boxed{}."
BRACKETED = re.compile(r"<[^\s<>]+>|\[[^\s\[\]]+\]")  # <|im_start|>, [INST]
NAMED = re.compile(r"\w+:")  # USER:
# Contents of the turns from which the turn markers of a chat template are read. Letters and digits alone: no template
# and no tokenizer changes them.
CONTENTS = ("firstproblem1", "firstanswer1", "secondproblem2")


@dataclass(frozen=True)
class PromptFormat:
    r"""
    One way to put a problem to a model.

    Args:
        name (`str`):
            Name in a recipe.
        system (`str` or `None`):
            System message; `None` for none at all.
        problem (`str`):
            User message, with `{problem}` where the problem goes.
        reasoning (`tuple[str, str]` or `None`):
            Tags around the reasoning. The opening one may be missing from a completion: many chat templates write it.
        solution (`tuple[str, str]` or `None`):
            Tags around the answer.
        boxed (`bool`):
            Whether the answer is expected in `\boxed{}`.
    """

    name: str
    system: str | None
    problem: str
    reasoning: tuple[str, str] | None = None
    solution: tuple[str, str] | None = None
    boxed: bool = False

    @property
    def tags(self) -> tuple[str, ...]:
        return (*(self.reasoning or ()), *(self.solution or ()))


PROMPT_FORMATS = {
    prompt_format.name: prompt_format
    for prompt_format in (
        # What Qwen2.5-Math was trained on
        PromptFormat("qwen-math", system=BOXED, problem="{problem}", boxed=True),
        # DeepSeek-R1 is to be used without a system message
        PromptFormat(
            "r1", system=None, problem="{problem}\n\n" + BOXED, reasoning=("<think>", "</think>"), boxed=True
        ),
        PromptFormat(
            "tags",
            system="You are given a problem.\nThink about the problem and provide your working out.\n"
            "Place it between <start_working_out> and <end_working_out>.\n"
            "Then, provide your solution between <SOLUTION></SOLUTION>",
            problem="{problem}",
            reasoning=("<start_working_out>", "<end_working_out>"),
            solution=("<SOLUTION>", "</SOLUTION>"),
        ),
        PromptFormat("plain", system=None, problem="{problem}"),
    )
}


def resolve_prompt_format(name: str) -> PromptFormat:
    """The format of that name. Raises [`ValueError`] if there is none."""
    if name not in PROMPT_FORMATS:
        raise ValueError(
            f"`prompt_format` is '{name}'.{nearest(name, PROMPT_FORMATS)} It must be one of {list(PROMPT_FORMATS)}."
        )
    return PROMPT_FORMATS[name]


def make_prompt(problem: str, prompt_format: str, markers: Iterable[str]) -> list[dict[str, str]]:
    """
    Puts a problem as messages.

    Args:
        problem (`str`):
            The problem.
        prompt_format (`str`):
            Name of the format.
        markers (iterable of `str`):
            What the problem must not contain intact, from [`control_markers`].

    Returns:
        `list[dict[str, str]]`: a user message, after a system message if the format has one.
    """
    form = resolve_prompt_format(prompt_format)
    # Not `str.format`: the text around the problem has braces of its own
    user = {"role": "user", "content": form.problem.replace("{problem}", neutralise(problem, markers))}
    return [user] if form.system is None else [{"role": "system", "content": form.system}, user]


def make_completion(solution: str, answer: str, prompt_format: str, markers: Iterable[str]) -> list[dict[str, str]]:
    r"""
    Puts a worked solution as the model is to write it, for supervised training.

    Args:
        solution (`str`):
            The worked solution. Of one with `<think>` tags the reasoning is what they hold.
        answer (`str`):
            Its final answer, added where the format asks for it and the solution does not give it.
        prompt_format (`str`):
            Name of the format.
        markers (iterable of `str`):
            What the solution must not contain intact, from [`control_markers`].

    Returns:
        `list[dict[str, str]]`: an assistant message that follows the format.

    Raises:
        [`ValueError`]: there is nothing to learn from; the message is the reason, for the report.
    """
    form = resolve_prompt_format(prompt_format)
    reasoning, closed, summary = solution.rpartition("</think>")
    reasoning = reasoning.strip().removeprefix("<think>")
    reasoning, summary, answer = (neutralise(text, markers).strip() for text in (reasoning, summary, answer))
    if not reasoning and not summary:
        raise ValueError("the solution is empty")
    if form.reasoning is None:
        text = "\n\n".join(part for part in (reasoning, summary) if part)
    else:
        opening, closing = form.reasoning
        if not closed:  # all of it is reasoning
            reasoning, summary = summary, ""
        elif form.solution is not None:  # the answer stands alone between its tags
            reasoning, summary = "\n\n".join(part for part in (reasoning, summary) if part), ""
        text = f"{opening}\n{reasoning}\n{closing}" + (f"\n\n{summary}" if summary else "")
    if form.solution is not None:
        text += f"\n{form.solution[0]}{answer}{form.solution[1]}"
    elif form.boxed and not last_box(summary or ("" if form.reasoning else text)):
        text += f"\n\n\\boxed{{{answer}}}"
    return [{"role": "assistant", "content": text}]


def prompt_text(
    prompt: str | list[dict[str, str]],
    tokenizer: "PreTrainedTokenizerBase",
    chat_template_kwargs: dict[str, Any] | None = None,
) -> str:
    """A prompt as the model sees it: messages by the chat template, a text as it is."""
    if isinstance(prompt, str):
        return prompt
    return tokenizer.apply_chat_template(
        prompt, tokenize=False, add_generation_prompt=True, **(chat_template_kwargs or {})
    )


def check_chat_template(template: str | None, name: str) -> None:
    """Raises [`ValueError`] if the model of this name has no chat template, so that messages cannot be put to it."""
    if template is None:
        raise ValueError(
            f"the tokenizer of '{name}' has no chat template, and a prompt is messages. Put a "
            "`chat_template.jinja` into the model's folder, or take a model that has one."
        )


def control_markers(tokenizer: "PreTrainedTokenizerBase", prompt_format: str) -> list[str]:
    """
    Lists what a problem must not contain intact.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            Tokenizer of the model, with its chat template.
        prompt_format (`str`):
            Name of the format.

    Returns:
        `list[str]`: the tokenizer's control tokens, the turn markers that its chat template spells as text (`[INST]`,
        `USER:`), and the format's tags. Longest first, so that a marker is broken before one inside it.
    """
    check_chat_template(tokenizer.chat_template, tokenizer.name_or_path)
    found = {*control_tokens(tokenizer), *resolve_prompt_format(prompt_format).tags, *_turn_markers(tokenizer)}
    # A single character has no inside to break
    markers = {marker.strip() for marker in found if len(marker.strip()) > 1}
    return sorted(markers, key=lambda marker: (-len(marker), marker))


def control_tokens(tokenizer: "PreTrainedTokenizerBase") -> dict[str, int]:
    """
    The tokens that mean something else than the text they spell: the special ones, and added ones that look like
    markup. Added tokens that are mere text, such as runs of spaces, are none.
    """
    added = {str(token): (number, token.special) for number, token in tokenizer.added_tokens_decoder.items()}
    return {
        text: number
        for text, (number, special) in added.items()
        if not text.isspace() and (special or BRACKETED.fullmatch(text))
    }


def neutralise(text: str, markers: Iterable[str]) -> str:
    """Breaks every one of `markers` in `text` by a space after its first character."""
    for marker in markers:
        # Repeated, since occurrences of a marker like "||" can overlap
        while marker in text:
            text = text.replace(marker, f"{marker[0]} {marker[1:]}")
    return text


def _turn_markers(tokenizer: "PreTrainedTokenizerBase") -> set[str]:
    """Words between the turns of a conversation that its chat template writes as markup or as a speaker's name."""
    roles = ("user", "assistant", "user")
    turns = [{"role": role, "content": content} for role, content in zip(roles, CONTENTS, strict=True)]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    # What precedes the first turn may be a default system message, whose words are no markers
    head, _, rest = text.partition(CONTENTS[0])
    for content in CONTENTS:
        rest = rest.replace(content, "\n")
    return {*BRACKETED.findall(head), *BRACKETED.findall(rest), *NAMED.findall(rest)}


# What a completion looks like


def follows_format(prompt_format: str, completion: str) -> bool:
    r"""
    Whether a completion has the form that its prompt asked for. Linear in its length, whatever it contains.

    Args:
        prompt_format (`str`):
            Name of the format.
        completion (`str`):
            What the model wrote.

    Returns:
        `bool`: the reasoning is there and its tags stand once, in order; the answer is there, in a closed, non-empty
        `\boxed{}` or alone between the solution tags, with nothing after them. Format `"plain"` asks for nothing.
    """
    form = resolve_prompt_format(prompt_format)
    answer = completion
    if form.reasoning is not None:
        opening, closing = form.reasoning
        reasoning, _, answer = completion.strip().removeprefix(opening).partition(closing)
        if not reasoning.strip() or opening in reasoning + answer or closing in answer:
            return False
        if form.solution is not None and any(tag in reasoning for tag in form.solution):
            return False
    if form.solution is not None:
        opening, closing = form.solution
        before, _, inner = answer.partition(opening)
        inner, end, rest = inner.partition(closing)
        return bool(inner.strip() and end) and not rest.strip() and closing not in before and opening not in inner
    return bool(last_box(answer)) if form.boxed else True


def answer_text(prompt_format: str, completion: str) -> str:
    """
    The part of a completion that the answer is read from: what follows the reasoning, and of that what the last pair
    of solution tags holds. The whole completion where it has no such tags.
    """
    form = resolve_prompt_format(prompt_format)
    if form.reasoning is not None:
        completion = completion.rpartition(form.reasoning[1])[2]
    if form.solution is not None:
        opening, closing = form.solution
        start = completion.rfind(opening, 0, max(completion.rfind(closing), 0))
        if start >= 0:
            completion = completion[start:].removeprefix(opening).partition(closing)[0].strip()
    return completion


def last_box(text: str) -> str | None:
    r"""
    The content of the last `\boxed{...}` that is closed, of nested ones the innermost; `None` if there is none. One
    pass with a stack: a million openings without an end cost no more than a million letters.
    """
    if r"\boxed" not in text:
        return None
    stack: list[int] = []  # where the content of each open box starts; -1 for any other open brace
    best = (-1, -1)
    position = text.find(r"\boxed")
    while position < len(text):
        if text.startswith(r"\boxed", position):
            position += len(r"\boxed")
            while text.startswith(" ", position):
                position += 1
            if text.startswith("{", position):
                stack.append(position + 1)
                position += 1
            continue
        if text[position] == "\\":
            position += 1  # \{ and \} are signs, not braces
        elif text[position] == "{":
            stack.append(-1)
        elif text[position] == "}" and stack:
            best = max(best, (stack.pop(), position))
        position += 1
    return text[best[0] : best[1]].strip() if best[0] >= 0 else None


# The record in a trained model's folder


def save_prompt_format(folder: str | Path, prompt_format: str | None) -> None:
    """
    Records in a model's folder which format it was trained with, with its texts.

    Args:
        folder (`str` or `Path`):
            The folder, made if it is not there.
        prompt_format (`str` or `None`):
            Name of the format; `None` where the prompts came as messages from the dataset or the task.
    """
    record: dict[str, str | None] = {"prompt_format": prompt_format}
    if prompt_format is not None:
        form = resolve_prompt_format(prompt_format)
        record |= {"system": form.system, "problem": form.problem}
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / RECORD).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def load_prompt_format(folder: str | Path) -> str | None:
    """
    Reads which format a model was trained with.

    Args:
        folder (`str` or `Path`):
            The model's or adapter's folder.

    Returns:
        `str` or `None`: name of the format; `None` where the folder records none.

    Raises:
        [`ValueError`]: the format is unknown here, or its texts have changed since.
    """
    path = Path(folder) / RECORD
    if not path.is_file():
        return None
    record = json.loads(path.read_text(encoding="utf-8"))
    name = record["prompt_format"]
    if name is None:
        return None
    if name not in PROMPT_FORMATS:
        raise ValueError(f"{path} says '{name}', which is no prompt format of this version: {list(PROMPT_FORMATS)}.")
    form = PROMPT_FORMATS[name]
    if (record["system"], record["problem"]) != (form.system, form.problem):
        raise ValueError(
            f"{path}: the model was trained with another text of '{name}' than this version has. Use the version of "
            "sage-trl that trained it."
        )
    return name
