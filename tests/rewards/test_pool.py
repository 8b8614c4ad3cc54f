import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from threading import Thread

import pytest

from sage_trl.rewards.math import verdicts
from sage_trl.rewards.pool import Pool, Verdict, set_shared_pool, shared_pool

HOSTILE = {
    "a tower": r"\boxed{5^{5^{5^{5^5}}}}",
    "a number of 100,000 digits": r"\boxed{" + "9" * 100_000 + "}",
    "a million characters": "x" * 1_000_000 + r"\boxed{7}",
    "140,000 open boxes": r"\boxed{" * 140_000,
    "a million braces": r"\boxed{" + "{" * 1_000_000,
    "a factorial": r"\boxed{(10^{10})!}",
    "900 parentheses": r"\boxed{" + "(" * 900 + "5" + ")" * 900 + "}",
    "a common divisor": r"\boxed{\gcd(9^{9^9}, 3)}",
    "an integral": r"\boxed{\int_0^1 e^{x^{x^x}} \sin(x^{10}) dx}",
    "a power of a sum": r"\boxed{(x+y+z+w)^{200}}",
    "a million dollar signs": "$" * 1_000_000,
    "150 nested fractions": r"\boxed{" + r"\frac{1}{" * 150 + "5" + "}" * 150 + "}",
}
STUCK = r"\gcd(9^{9^9}, 3)"


def children(pid: int) -> list[int]:
    """Processes below one, from /proc."""
    below = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            below.setdefault(int(stat.read_text().rsplit(")", 1)[1].split()[1]), []).append(int(stat.parent.name))
        except FileNotFoundError:
            continue
    found = below.get(pid, [])
    return found + [grandchild for child in found for grandchild in children(child)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], limit: float = 20.0):
    end = time.monotonic() + limit
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not [pid for pid in pids if is_running(pid)]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_costs_its_limit_and_no_more(name, impatient_pool):
    verdicts(["x+1"], [r"\boxed{1+x}"])  # the pool has started
    start = time.monotonic()
    found = verdicts(["x+1", "x+1", "x+1"], [r"\boxed{1+x}", HOSTILE[name], r"\boxed{x+2}"])
    assert found[0] is Verdict.RIGHT and found[2] is Verdict.WRONG
    assert found[1] in (Verdict.WRONG, Verdict.TIMEOUT)
    # The limit of a second, and what replacing a worker takes on a busy machine; unlimited it is minutes or for ever
    assert time.monotonic() - start < 15


def test_the_others_verdicts_arrive_in_order(impatient_pool):
    pairs = []
    for index in range(40):
        pairs.append((f"x+{index}", f"{index}+x" if index % 2 else "x"))
        if index % 10 == 0:
            pairs.append((f"{index}", STUCK))
    found = impatient_pool.judge(pairs)
    for (gold, answer), verdict in zip(pairs, found, strict=True):
        if answer == STUCK:
            assert verdict is Verdict.TIMEOUT
        else:
            assert (verdict is Verdict.RIGHT) == (answer != "x" or gold == "x+0"), gold


def test_equal_pairs_are_judged_once(impatient_pool):
    start = time.monotonic()
    assert impatient_pool.judge([("5", STUCK)] * 64) == [Verdict.TIMEOUT] * 64
    assert time.monotonic() - start < 30


def test_nothing_to_judge_starts_nothing():
    pool = Pool()
    assert pool.judge([]) == []
    assert verdicts(["7", "1,000"], [r"\boxed{7.0}", r"\boxed{1001}"]) == [Verdict.RIGHT, Verdict.WRONG]
    assert pool._server is None


def leaves(pid: int) -> list[int]:
    """The workers: processes below one that have none below them."""
    return [child for child in children(pid) if not children(child) and not is_helper(child)]


def is_helper(pid: int) -> bool:
    return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_workers_are_replaced(workers):
    pool = Pool(workers=workers)
    for _ in range(3):
        assert pool.judge([("x", "x"), ("y", "z")]) == [Verdict.RIGHT, Verdict.WRONG]
        for pid in leaves(pool._server.pid):
            os.kill(pid, signal.SIGKILL)
    pool.close()


def test_a_worker_killed_at_work_costs_nothing():
    pool = Pool(workers=1, timeout=8.0)
    pool.judge([("x", "x")])
    found = []
    thread = Thread(target=lambda: found.extend(pool.judge([("5", STUCK), ("x", "x")])))
    thread.start()
    time.sleep(1.0)
    for pid in leaves(pool._server.pid):
        os.kill(pid, signal.SIGKILL)
    thread.join()
    # The pair was tried again, and this time reached its limit
    assert found == [Verdict.TIMEOUT, Verdict.RIGHT]
    pool.close()


def test_a_killed_server_is_replaced():
    pool = Pool(workers=1)
    pool.judge([("x", "x")])
    below = children(pool._server.pid)
    os.kill(pool._server.pid, signal.SIGKILL)
    wait_until_gone(below)
    assert pool.judge([("x", "x"), ("y", "z")]) == [Verdict.RIGHT, Verdict.WRONG]
    pool.close()


def test_every_worker_has_its_limit_of_memory():
    pool = Pool(workers=2, memory=700 * 1024**2)
    assert pool.judge([("x", "x")]) == [Verdict.RIGHT]
    deadline = time.monotonic() + 60
    while True:  # one answer says that one worker is there: the other may be about to set its limit
        limits = [Path(f"/proc/{pid}/limits").read_text() for pid in leaves(pool._server.pid)]
        lines = [line for text in limits for line in text.splitlines() if line.startswith("Max address space")]
        found = [line.split()[3] for line in lines]
        if found == [str(700 * 1024**2)] * 2 or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    assert found == [str(700 * 1024**2)] * 2
    pool.close()


def test_closing_ends_every_process():
    pool = Pool(workers=2)
    pool.judge([("x", "x")])
    pids = [pool._server.pid, *children(pool._server.pid)]
    pool.close()
    wait_until_gone(pids)
    assert pool.judge([("x", "x")]) == [Verdict.RIGHT]
    pool.close()


SCRIPT = """
import os
from sage_trl.rewards.math import is_correct
from sage_trl.rewards.pool import shared_pool
print("started", os.getpid())
assert is_correct("x+1", r"\\boxed{1+x}") is True
print("server", shared_pool()._server.pid, flush=True)
"""


def run_script(tmp_path, more=""):
    script = tmp_path / "no_main_guard.py"
    script.write_text(SCRIPT + textwrap.dedent(more))
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    process = run_script(tmp_path)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and errors == ""
    assert out.count("started") == 1
    wait_until_gone([int(out.split("server ")[1])])


def test_a_killed_trainer_leaves_nothing_behind(tmp_path):
    process = run_script(tmp_path, "import time; time.sleep(600)")
    process.stdout.readline()
    server = int(process.stdout.readline().split()[1])
    pids = [server, *children(server)]
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    wait_until_gone(pids)


def _judge_in_child(queue):
    queue.put((shared_pool().judge([("x", "x")])[0].name, shared_pool()._server.pid))


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_process_has_its_own_pool(method):
    shared_pool().judge([("x", "x")])
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_judge_in_child, args=(queue,))
    child.start()
    name, server = queue.get(timeout=120)
    child.join(60)
    assert name == "RIGHT" and server != shared_pool()._server.pid
    assert shared_pool().judge([("y", "y")]) == [Verdict.RIGHT]


@pytest.mark.parametrize("limit", [{"workers": 0}, {"timeout": 0}, {"timeout": float("nan")}, {"memory": -1}])
def test_limits_are_positive(limit):
    with pytest.raises(ValueError, match=f"`{next(iter(limit))}` of the reward pool"):
        Pool(**limit)


def test_another_pool_takes_the_place_of_the_shared_one():
    pool = Pool(workers=1)
    set_shared_pool(pool)
    assert shared_pool() is pool
    set_shared_pool(Pool())
