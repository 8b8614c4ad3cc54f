from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from sage_trl.data.load import Rows, load_rows
from sage_trl.data.report import BadDataError
from sage_trl.data.training import make_training_set, read_answer

ROOT = Path(__file__).parents[2]
GSM8K = ROOT.parent / "shared" / "data" / "train" / "gsm8k.jsonl"
TOKENIZER = AutoTokenizer.from_pretrained(ROOT / "tests" / "golden" / "model")


def rows_of(columns):
    dataset = Dataset.from_dict(columns)
    return Rows(dataset, dataset.column_names, range(1, len(dataset) + 1))


def make(columns, prompt_format="plain", **settings):
    return make_training_set(rows_of(columns), "mine", TOKENIZER, prompt_format, **settings)


@pytest.mark.parametrize(
    ("columns", "problem", "answer"),
    [
        pytest.param(
            {
                "prompt": ["In triangle $ABC$, find $m+n$."],
                "solution": ["34"],
                "data_source": ["math_dapo"],
                "source_prompt": [[{"role": "user", "content": "Solve step by step: In triangle"}]],
                "ability": ["MATH"],
                "reward_model": [{"ground_truth": "34", "style": "rule-lighteval/MATH_v2"}],
                "extra_info": [{"index": "9a9b6eb4"}],
            },
            "In triangle $ABC$, find $m+n$.",
            "34",
            id="open-r1/DAPO-Math-17k-Processed",
        ),
        pytest.param(
            {"question": ["How many clips?"], "answer": ["48/2 = <<48/2=24>>24.\n48+24 = 72.\n#### 1,072"]},
            "How many clips?",
            "1,072",
            id="GSM8K",
        ),
        pytest.param(
            {
                "problem": ["Find $x$."],
                "level": ["Level 5"],
                "type": ["Algebra"],
                "solution": [r"First $\boxed{1}$ is no root. So $x = \boxed{\frac{1}{2}}$."],
            },
            "Find $x$.",
            r"\frac{1}{2}",
            id="MATH",
        ),
        pytest.param(
            {
                "source": ["olympiads"],
                "problem": ["Find $x$."],
                "solution": [r"So $x = \boxed{3}$."],
                "messages": [[{"role": "user", "content": "Find $x$."}]],
            },
            "Find $x$.",
            "3",
            id="NuminaMath-CoT",
        ),
        pytest.param(
            {"problem": ["Find $x$."], "solution": ["Long. " * 99], "answer": ["x=3"], "question_type": ["math-word"]},
            "Find $x$.",
            "x=3",
            id="NuminaMath-1.5",
        ),
        pytest.param(
            {"problem": ["Find $x$."], "answer": [r"\sqrt{2}"], "source": ["orca"], "llama8b_solve_rate": [0.5]},
            "Find $x$.",
            r"\sqrt{2}",
            id="Big-Math",
        ),
    ],
)
def test_columns_of_the_known_datasets_are_found(columns, problem, answer):
    dataset, report = make(columns)
    assert dataset["prompt"][0] == [{"role": "user", "content": problem}]
    assert dataset["answer"][0] == answer
    assert set(dataset.column_names) == {"prompt", "answer", *columns}
    assert (report.read, report.kept, report.dropped) == (1, 1, {})


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("42", "42"),
        (42, "42"),
        (0.5, "0.5"),
        (" 1/2 \n", "1/2"),
        ("2 + 2 = 4\n#### 4\n", "4"),
        ("#### 1\n#### 2", "2"),
        (r"So \boxed{1}, no, $\boxed{\text{(A) } 3}$.", r"\text{(A) } 3"),
        (r"So $x = \boxed 5.$", "5"),
        ("x^2 " * 100, ("x^2 " * 100).strip()),
    ],
)
def test_the_final_answer_is_taken(value, answer):
    assert read_answer(value) == answer


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "missing or empty"),
        ("\n", "missing or empty"),
        ("####", "missing or empty"),
        (r"\boxed{}", "missing or empty"),
        ("proof", "missing or empty"),
        (True, "not text"),
        (["4"], "not text"),
        ({"a": 1}, "not text"),
        (float("nan"), "not text"),
        ("\ud800", "not valid Unicode"),
        ("We go on. " * 50, "no final answer"),
    ],
)
def test_a_value_without_answer_is_told_by_its_reason(value, reason):
    with pytest.raises(ValueError, match=reason):
        read_answer(value)


def test_columns_can_be_set():
    columns = {"q": ["1 + 1?"], "a": ["2"], "problem": ["no"], "answer": ["no"]}
    dataset, _ = make(columns, problem_column="q", answer_column="a")
    assert (dataset["prompt"][0][0]["content"], dataset["answer"][0]) == ("1 + 1?", "2")


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        (
            {"text": ["1?"], "answer": ["1"]},
            {},
            r"no column named 'problem' or 'question' or 'prompt'. Set `problem_col",
        ),
        ({"problem": ["1?"]}, {}, r"no column named 'answer'.*Set `answer_column`. Its columns are \['problem'\]"),
        ({"problem": ["1?"], "answer": ["1"]}, {"answer_column": "answr"}, "no such column. Did you mean 'answer'?"),
        ({"problem": ["1?"], "answer": ["1"]}, {"prompt_format": None}, "`prompt_format` is not set"),
        ({"problem": ["1?"], "answer": ["1"]}, {"prompt_format": "r2"}, "Did you mean 'r1'?"),
    ],
)
def test_settings_that_do_not_fit_are_refused(columns, settings, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        make(columns, **settings)


def test_messages_are_kept_as_they_are():
    messages = [{"role": "system", "content": "Think."}, {"role": "user", "content": "1 + 1?"}]
    typed = [{"role": "system", "content": "Think."}, {"role": "user", "content": "1?<|im_end|>"}]
    columns = {"problem": ["1 + 1?"] * 3, "prompt": [messages, typed, []], "answer": ["2", "1", "1"]}
    dataset, report = make(columns, prompt_format=None)
    assert list(dataset["prompt"]) == [messages, typed]
    assert report.dropped == {"the prompt is missing or empty": [3]}
    assert report.warned == {"control tokens of the model typed in a message, kept": [2]}
    with pytest.raises(ValueError, match="`prompt_format` is 'plain', but column 'prompt' of 'mine' holds messages"):
        make(columns)


def test_a_prompt_is_kept_up_to_its_last_token_and_dropped_beyond():
    columns = {"problem": ["1 + 1?", "1 + 1 + 1?"], "answer": ["2", "3"]}
    lengths = [
        len(TOKENIZER.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"])
        for prompt in make(columns)[0]["prompt"]
    ]
    dataset, report = make(columns, max_prompt_length=lengths[0])
    assert list(dataset["answer"]) == ["2"]
    reason = f"the prompt is longer than `max_prompt_length` = {lengths[0]} tokens (longest: {lengths[1]})"
    assert report.dropped == {reason: [2]}
    assert make(columns, max_prompt_length=lengths[1])[1].kept == 2


def test_markup_in_a_problem_is_broken_and_counted():
    dataset, report = make({"problem": ["1?", "2?<|im_end|>"], "answer": ["1", "2"]})
    assert dataset["prompt"][1][0]["content"] == "2?< |im_end|>"
    assert report.warned == {"the model's own markup in the problem, broken by a space": [2]}


def test_a_control_token_of_one_character_cannot_be_broken_and_its_row_is_dropped():
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "tests" / "golden" / "model")
    tokenizer.add_special_tokens({"extra_special_tokens": ["¶"]})
    rows = rows_of({"problem": ["1?", "2¶?"], "answer": ["1", "2"]})
    dataset, report = make_training_set(rows, "mine", tokenizer, "plain")
    assert list(dataset["answer"]) == ["1"]
    assert report.dropped == {"the problem holds control tokens of the model": [2]}


def test_unreadable_golds_are_asked_for_once_each_and_dropped():
    asked = []

    def unreadable(answers):
        asked.extend(answers)
        return [answers.index("?")]

    dataset, report = make({"problem": ["a", "b", "c", "d"], "answer": ["1", "?", "1", "?"]}, unreadable=unreadable)
    assert asked == ["1", "?"]
    assert list(dataset["answer"]) == ["1", "1"]
    assert report.dropped == {"the math reward cannot read the answer": [2, 4]}


def test_a_report_names_the_first_rows_of_each_reason():
    columns = {"problem": ["1?"] + [""] * 7 + ["1?"], "answer": ["1"] * 9}
    _, report = make(columns)
    assert str(report) == (
        "mine: 9 rows read, 2 kept, 7 dropped; problems from 'problem', answers from 'answer'\n"
        "  dropped 7: the problem is missing or empty (rows 2, 3, 4, 5, 6 and 2 more)\n"
        "  warning 1: the problem stands there before, with the same answer (row 9)"
    )


def test_bad_rows_are_an_error_where_that_is_asked_for():
    columns = {"problem": ["1?", None], "answer": ["1", "2"]}
    with pytest.raises(BadDataError, match=r"`on_bad_rows` is 'error', and 1 of the 2 rows .* empty \(row 2\)"):
        make(columns, on_bad_rows="error")
    assert make({"problem": ["1?"], "answer": ["1"]}, on_bad_rows="error")[1].kept == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"problem": [], "answer": []}, "'mine' has no rows"),
        (
            {"problem": ["", "1?"], "answer": ["1", ""]},
            "of the 2 rows of 'mine' none is left. The most frequent reason: the problem",
        ),
    ],
)
def test_nothing_to_train_on_is_an_error(columns, message):
    with pytest.raises(BadDataError, match=message):
        make(columns)


def test_a_column_of_mixed_types_is_named(tmp_path):
    path = tmp_path / "problems.jsonl"
    path.write_text('{"problem": "1?", "answer": 1, "level": 5}\n{"problem": "2?", "answer": "2", "level": "hard"}\n')
    rows = load_rows(str(path), None, "train", "dataset_train_split")
    with pytest.raises(ValueError, match="column 'level' of 'mine' cannot be a column of a dataset"):
        make_training_set(rows, "mine", TOKENIZER, "plain")


def test_a_template_that_refuses_the_format_is_named():
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "tests" / "golden" / "model")
    tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    )
    with pytest.raises(ValueError, match=r"refuses the prompts: System role not supported. Choose a `prompt_format`"):
        make_training_set(rows_of({"problem": ["1?"], "answer": ["1"]}), "mine", tokenizer, "qwen-math")


@pytest.mark.skipif(not GSM8K.is_file(), reason="needs shared/data/train/gsm8k.jsonl beside the repository")
def test_gsm8k_loads_whole():
    rows = load_rows(str(GSM8K), None, "train", "dataset_train_split")
    dataset, report = make_training_set(rows, "gsm8k", TOKENIZER, "qwen-math", max_prompt_length=2048)
    assert str(report) == "gsm8k: 2000 rows read, 2000 kept, 0 dropped; problems from 'problem', answers from 'answer'"
    assert dataset["answer"][:3] == ["252", "15", "455,000"]


def test_columns_of_names_that_trl_has_taken_are_left_out_and_named():
    columns = {"problem": ["1?"], "answer": ["1"], "completions": ["x"], "image": ["y"], "level": [3]}
    dataset, report = make(columns)
    assert set(dataset.column_names) == {"prompt", "answer", "problem", "level"}
    assert "left out, as TRL has other things of that name: completions, image" in str(report)
