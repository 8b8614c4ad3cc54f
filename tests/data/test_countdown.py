import hashlib
import json

import pytest

from sage_trl.data.countdown import make_countdown, problem_key
from sage_trl.rewards.countdown import is_correct


def keys(dataset):
    return [problem_key(row["numbers"], row["target"]) for row in dataset]


def test_statement_is_one_terse_line():
    row = make_countdown(1)[0]
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    numbers = " ".join(map(str, row["numbers"]))
    assert row["prompt"][1]["content"] == f"Numbers: {numbers} Target: {row['target']}"


def test_every_known_answer_is_right():
    for row in make_countdown(500, seed=1, min_numbers=2, max_numbers=5):
        assert is_correct(row["answer"], row["numbers"], row["target"]), row


def test_rows_respect_the_ranges_and_use_all_of_them():
    rows = make_countdown(2000, min_numbers=2, max_numbers=4, max_number=9, max_target=30)
    assert {len(row["numbers"]) for row in rows} == {2, 3, 4}
    assert {number for row in rows for number in row["numbers"]} == set(range(1, 10))
    assert set(rows["target"]) == set(range(1, 31))


def test_answers_use_all_operators_widely():
    answers = make_countdown(1000)["answer"]
    for symbol in "+-*/(":
        assert sum(symbol in answer for answer in answers) > 100, symbol


def test_no_problem_appears_twice_even_reordered():
    rows = make_countdown(400, max_number=5, max_target=20)
    assert len(set(keys(rows))) == 400


def test_same_seed_same_rows_on_every_machine():
    def digest(seed):
        return hashlib.sha256(json.dumps(make_countdown(50, seed=seed).to_list()).encode()).hexdigest()

    assert digest(0) != digest(1)
    assert digest(0)[:16] == "bf4c3d3373b57050"


def test_splits_are_disjoint_whatever_the_seeds():
    # The space is small enough for both calls to cover much of it: an accidental overlap would show.
    train = set(keys(make_countdown(1000, seed=0, split="train", max_number=6, max_target=30)))
    test = set(keys(make_countdown(100, seed=5, split="test", max_number=6, max_target=30)))
    assert not train & test


def test_a_longer_call_extends_a_shorter_one():
    assert make_countdown(20)["answer"][:10] == make_countdown(10)["answer"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"split": "validation"}, "split is 'validation'"),
        ({"num_rows": 0}, "num_rows is 0"),
        ({"min_numbers": 1}, "min_numbers is 1"),
        ({"min_numbers": 4, "max_numbers": 3}, "max_numbers is 3"),
        ({"max_number": 0}, "max_number is 0"),
        ({"max_target": -1}, "max_target is -1"),
        ({"num_rows": 10**15}, "num_rows is 1000000000000000"),  # refused at once, by the bound
        ({"num_rows": 60, "max_number": 2, "max_target": 20, "max_numbers": 3}, "about 17 problems"),
    ],
)
def test_impossible_requests_name_the_setting(arguments, named):
    with pytest.raises(ValueError, match=named):
        make_countdown(**{"num_rows": 5, **arguments})
