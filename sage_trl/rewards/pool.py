"""Judges answers in worker processes, each under a hard limit of time and of memory.

    trainer (one rank)  --pairs-->  server  --one pair-->  worker, worker, ...
                        <-verdicts-         <--verdict---

The server is a fresh interpreter that owns a pebble pool. It stands between the two for three reasons: the trainer
never forks, which is not safe once CUDA has started; the user's own script is not run again in every worker, which
`spawn` would do; and a worker that was killed comes back in milliseconds, forked from a process that holds the
imports and nothing else. The limits are kept by killing the worker. A limit by signals, as math-verify and TRL have
it, works in a main thread only and not inside one long multiplication of integers.

A server ends with the trainer, however that ends: its connection closes.
"""

import atexit
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import CancelledError, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from enum import Enum
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path

logger = logging.getLogger(__name__)

Pair = tuple[str, str | None]  # gold, answer

TIMEOUT = 5.0
MEMORY = 2 * 1024**3
MAX_WORKERS = 8
# How long the server may need beyond what its workers may: to start, and to replace those that it killed.
GRACE = 120.0


class Verdict(Enum):
    """What became of a pair."""

    RIGHT = "right"
    WRONG = "wrong"
    UNREADABLE = "the gold cannot be read"
    TIMEOUT = "its limit of time was reached"
    LOST = "its worker died twice"
    FAILED = "judging it raised an error"


class Pool:
    """
    Judges pairs of a gold and an answer side by side. Nothing is started before the first use.

    Args:
        workers (`int`, *optional*):
            Number of worker processes. Defaults to this process's share of the machine's cores, at most 8.
        timeout (`float`, *optional*, defaults to `5.0`):
            Seconds that one pair may take. The worker that takes longer is killed and replaced.
        memory (`int`, *optional*, defaults to `2 * 1024**3`):
            Bytes of address space that one worker may hold.

    Raises:
        [`ValueError`]: if a limit is not positive.
    """

    def __init__(self, workers: int | None = None, timeout: float = TIMEOUT, memory: int = MEMORY):
        workers = _default_workers() if workers is None else workers
        for name, value in (("workers", workers), ("timeout", timeout), ("memory", memory)):
            if not value > 0:
                raise ValueError(f"`{name}` of the reward pool is {value}. It must be above 0.")
        self.workers, self.timeout, self.memory = workers, timeout, memory
        self._server: subprocess.Popen | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def judge(self, pairs: list[Pair]) -> list[Verdict]:
        """
        Judges a whole batch.

        Args:
            pairs (`list[tuple[str, str | None]]`):
                Gold and answer of each completion, `None` where it has none. Equal pairs are judged once.

        Returns:
            `list[Verdict]`: one for each pair, in their order.

        Raises:
            [`RuntimeError`]: if the server cannot be started, or died twice over the batch.
        """
        distinct = list(dict.fromkeys(pairs))
        if not distinct:
            return []
        with self._lock:
            try:
                verdicts = self._ask(distinct)
            except (EOFError, OSError):
                logger.warning("The process that judges answers died. A new one judges the batch again.")
                self._close()
                try:
                    verdicts = self._ask(distinct)
                except (EOFError, OSError) as error:
                    self._close()
                    raise RuntimeError(
                        "The process that judges answers died twice over one batch; what it printed is above. Is the "
                        f"machine out of memory? Each of its {self.workers} workers may take "
                        f"{self.memory / 1024**3:.1f} GiB."
                    ) from error
        found = dict(zip(distinct, verdicts, strict=True))
        return [found[pair] for pair in pairs]

    def _ask(self, pairs: list[Pair]) -> list[Verdict]:
        if self._server is None:
            self._start()
        self._connection.send(pairs)
        # Two tries of each pair at most, shared by the workers
        if not self._connection.poll(2 * self.timeout * (len(pairs) / self.workers + 1) + GRACE):
            self._close()
            raise RuntimeError("The process that judges answers no longer answers, beyond every limit. It was killed.")
        verdicts = []
        for name, detail in self._connection.recv():
            verdicts.append(Verdict[name])
            if detail:
                logger.warning(detail)
        return verdicts

    def _start(self):
        self._connection, theirs = Pipe()
        package_parent = str(Path(__file__).resolve().parents[2])
        paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-c", "from sage_trl.rewards.pool import serve; serve()"]
                + [str(theirs.fileno()), str(self.workers), str(self.timeout), str(self.memory)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # No GPU, and one thread per worker: there are as many of them as cores
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
                # Ctrl-C is the trainer's: it may still want verdicts for the checkpoint it makes
                start_new_session=True,
            )

    def close(self):
        """Ends the server and its workers. The next use starts them again."""
        with self._lock:
            self._close()

    def _close(self):
        server, connection, self._server, self._connection = self._server, self._connection, None, None
        if connection is not None:
            connection.close()
        if server is not None:
            try:
                server.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _default_workers() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MAX_WORKERS, cores // int(os.environ.get("LOCAL_WORLD_SIZE", 1))))


_pools: dict[int, Pool] = {}


def shared_pool() -> Pool:
    """
    The pool of this process, made on the first call and closed when the process ends.

    Returns:
        [`Pool`]: one per rank; a process that was forked makes its own.
    """
    if os.getpid() not in _pools:
        set_shared_pool(Pool())
    return _pools[os.getpid()]


def set_shared_pool(pool: Pool):
    """
    Makes a pool with other limits the one that the rewards of this process use.

    Args:
        pool ([`Pool`]):
            The pool. The one before it is closed.
    """
    before = _pools.pop(os.getpid(), None)
    _pools.clear()  # what a fork inherited is its parent's to close
    if before is not None:
        before.close()
    _pools[os.getpid()] = pool


@atexit.register
def _close_at_exit():
    if os.getpid() in _pools:
        _pools[os.getpid()].close()


# The server


def serve():
    """Main function of the server: judges batches until the trainer's end of the connection closes."""
    fd, workers, timeout, memory = sys.argv[1:]
    workers = _Workers(int(workers), float(timeout), int(memory))
    with Connection(int(fd)) as connection:
        try:
            while True:
                connection.send(workers.judge(connection.recv()))
        except (EOFError, BrokenPipeError, ConnectionResetError):  # the trainer is gone, or wants no more
            workers.close()


class _Workers:
    """The server's worker processes."""

    def __init__(self, count: int, timeout: float, memory: int):
        self.count, self.timeout, self.memory = count, timeout, memory
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(["sage_trl.rewards.judge"])
        self.pool = None

    def judge(self, pairs: list[Pair]) -> list[tuple[str, str | None]]:
        """Name of each verdict, and what is to be logged."""
        futures = [self.schedule(pair) for pair in pairs]
        return [self.outcome(future, pair) for future, pair in zip(futures, pairs, strict=True)]

    def schedule(self, pair: Pair):
        from pebble import ProcessPool

        if self.pool is None or not self.pool.active:
            # pebble gives its whole pool up where a worker dies that had nothing to do
            self.close()
            self.pool = ProcessPool(
                self.count, context=self.context, initializer=_limit_memory, initargs=[self.memory]
            )
        return self.pool.schedule(_judge, args=pair, timeout=self.timeout)

    def outcome(self, future, pair: Pair, tries: int = 2) -> tuple[str, str | None]:
        from pebble import ProcessExpired

        try:
            return future.result(), None
        except TimeoutError:
            return "TIMEOUT", None
        except (ProcessExpired, BrokenProcessPool, CancelledError):
            # Perhaps the machine killed it and the pair is innocent
            return ("LOST", None) if tries == 1 else self.outcome(self.schedule(pair), pair, tries - 1)
        except Exception as error:  # whatever algebra raises on what a model wrote: wrong, and said
            return "FAILED", f"Judging {str(pair)[:300]} raised {error!r}. It counts as wrong."

    def close(self):
        if self.pool is not None:
            self.pool.stop()
            self.pool.join()
            self.pool = None


def _judge(gold: str, answer: str | None) -> str:
    from .judge import judge

    return {True: "RIGHT", False: "WRONG", None: "UNREADABLE"}[judge(gold, answer)]


def _limit_memory(memory: int):
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
