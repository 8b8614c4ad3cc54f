import itertools
import json
import random
from pathlib import Path
from threading import Thread

import pytest
from math_verify import parse, verify

from sage_trl.rewards import resolve_reward
from sage_trl.rewards.math import is_correct, math_reward, unreadable, verdicts
from sage_trl.rewards.pool import Verdict

DATA = Path(__file__).parent.parent / "data"
GOLDS = json.loads((DATA / "benchmark_golds.json").read_text())


def read_lines(name):
    return [json.loads(line) for line in (DATA / name).read_text().splitlines()]


CASES = read_lines("answer_cases.jsonl") + read_lines("answer_kinds.jsonl")


@pytest.fixture(scope="module")
def cases():
    found = verdicts([row["gold"] for row in CASES], [row["completion"] for row in CASES])
    return list(zip(CASES, found, strict=True))


def test_the_cases_are_all_there():
    assert len(read_lines("answer_cases.jsonl")) == 135


@pytest.mark.parametrize("index", range(len(CASES)))
def test_cases(cases, index):
    row, verdict = cases[index]
    assert (verdict is Verdict.RIGHT) == row["correct"], f"{row}: {verdict}"


def test_no_case_needs_its_limit(cases):
    assert [row for row, verdict in cases if verdict not in (Verdict.RIGHT, Verdict.WRONG)] == []


@pytest.mark.parametrize("benchmark", GOLDS)
def test_every_benchmark_gold_recognises_itself(benchmark):
    golds = GOLDS[benchmark]
    found = verdicts(golds, [f"So the answer is $\\boxed{{{gold}}}$." for gold in golds])
    assert [gold for gold, verdict in zip(golds, found, strict=True) if verdict is not Verdict.RIGHT] == []
    assert unreadable(golds) == []


def test_almost_no_gold_recognises_another():
    golds = list(dict.fromkeys(itertools.chain(*GOLDS.values())))
    pairs = random.Random(0).sample(list(itertools.permutations(golds, 2)), 4_000)
    found = verdicts([gold for gold, _ in pairs], [f"\\boxed{{{other}}}" for _, other in pairs])
    accepted = [pair for pair, verdict in zip(pairs, found, strict=True) if verdict is Verdict.RIGHT]
    # The benchmarks hold few pairs of equal answers under two spellings: 56 and 56.0
    assert len(accepted) < 0.003 * len(pairs), accepted


def test_what_math_verify_accepts_is_accepted():
    """Expanded, factored and reprinted golds, less those whose gold it reads wrong: 3e8, -1./3."""
    rows = read_lines("ordinary_answers.jsonl")
    found = verdicts([row["gold"] for row in rows], [f"\\boxed{{{row['answer']}}}" for row in rows])
    lost = [row for row, verdict in zip(rows, found, strict=True) if verdict is not Verdict.RIGHT]
    assert lost == []


@pytest.mark.parametrize("row", read_lines("ordinary_answers.jsonl")[::12], ids=lambda row: row["gold"][:40])
def test_the_ordinary_answers_are_math_verify_s(row):
    assert verify(parse(f"${row['gold']}$"), parse(f"$\\boxed{{{row['answer']}}}$"))


@pytest.mark.parametrize("gold", ["", "   ", r"\frac{1}{", "$$", r"}{", r"\begin{pmatrix}", None])
def test_only_an_unreadable_gold_gives_none(gold):
    assert is_correct(gold, r"\boxed{7}") is None
    assert unreadable(["7", gold, r"\text{east}"]) == [1]
    assert math_reward([r"\boxed{7}"], answer=[gold]) == [None]


@pytest.mark.parametrize(
    "completion", ["", r"\boxed{}", r"\boxed{\frac{1}{}", "\x00", "\\", r"\boxed{%&#_^}", "no answer"]
)
def test_an_unreadable_answer_is_wrong(completion):
    for gold in ("7", "x+1", r"\text{east}", "(1,2)"):
        assert is_correct(gold, completion) is False


@pytest.mark.parametrize("gold", [7, 7.0, "#### 7", "so $x$ is\n#### 7", r"We get $\boxed{7}$."])
def test_golds_as_datasets_hold_them(gold):
    assert is_correct(gold, r"\boxed{7}") is True
    assert is_correct(gold, r"\boxed{8}") is False


def test_reward_reads_text_and_messages_and_both_columns():
    texts = [r"\boxed{\frac12}", r"\boxed{2}"]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    for completions in (texts, messages):
        assert math_reward(completions, answer=["0.5", "3"]) == [1.0, 0.0]
        assert math_reward(completions, solution=["0.5", "3"], level=[1, 2]) == [1.0, 0.0]
    assert math_reward(texts, answer=["0.5", "3"], solution=["9", "9"]) == [1.0, 0.0]
    with pytest.raises(ValueError, match="neither an `answer` nor a `solution` column"):
        math_reward(texts)


def test_reward_counts_what_reached_its_limit(impatient_pool):
    logged = {}
    rewards = math_reward(
        [r"\boxed{\gcd(9^{9^9}, 3)}", r"\boxed{x+1}", r"\boxed{5}", ""],
        answer=["5", "1+x", "5", "5"],
        log_metric=logged.__setitem__,
    )
    assert rewards == [0.0, 1.0, 1.0, 0.0]
    assert logged == {"rewards/timeout_frac": 0.25}


def test_odd_values_do_not_end_a_batch():
    completions = [
        [{"role": "assistant", "content": None}],
        [{"role": "assistant", "content": [{"type": "text", "text": r"\boxed{7}"}]}],
        [],
        None,
        "",
        r"\boxed{7}",
    ]
    assert math_reward(completions, answer=["7"] * 6) == [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    assert math_reward([r"\boxed{7}"] * 2, answer=[10**5000, ["7", "8"]])[0] is None
    assert math_reward([], answer=[]) == []


def test_a_gold_that_only_its_own_spelling_matches():
    for gold in (r"GL_2(\mathbb{R})", r"\{1,2,\dots,10\}", r"n \bmod 5", r"\triangle ABC"):
        assert is_correct(gold, rf"\boxed{{{gold}}}") is True
        assert is_correct(gold, r"\boxed{7}") is False


def test_recipes_name_it():
    assert resolve_reward("math") is math_reward


def test_outside_the_main_thread():
    found = []
    thread = Thread(target=lambda: found.append(is_correct("x+1", r"\boxed{1+x}")))
    thread.start()
    thread.join()
    assert found == [True]
