"""What has been sampled and judged so far, on disk: one line for each completion, compressed, and safe to kill.

Each batch of lines is one gzip member that is written and flushed at once. A run that was killed within a write leaves
half a member; it is cut off when the file is opened again, so that at most that batch is sampled anew. Shards of a run
write files of their own, and whoever reads them reads them all.
"""

import gzip
import json
import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

CHUNK = 2**20
MEMBER = b"\x1f\x8b\x08"  # how a gzip member begins


class Records:
    """
    The records of one benchmark, of one shard.

    Args:
        folder (`str` or `Path`):
            Folder of the benchmark's records, made if it is not there.
        shard (`tuple[int, int]`, *optional*, defaults to `(0, 1)`):
            Number of this shard and how many there are.
    """

    def __init__(self, folder: str | Path, shard: tuple[int, int] = (0, 1)):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"{shard[0]:03d}-of-{shard[1]:03d}.jsonl.gz"
        if self.path.is_file():
            repair(self.path)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Writes a batch of lines, and returns when they are on the disk."""
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with self.path.open("ab") as file:
            # One write, without a time stamp: the same records are the same bytes
            file.write(gzip.compress(lines.encode("utf-8", errors="surrogatepass"), mtime=0))
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return read_records(self.folder)


def read_records(folder: str | Path) -> Iterator[dict[str, Any]]:
    """Every line of all shards, in the order of the files. A half-written end is passed over."""
    for path in sorted(Path(folder).glob("*.jsonl.gz")):
        rest = b""
        for text, _ in _members(path):
            *lines, rest = (rest + text).split(b"\n")
            for line in lines:
                yield json.loads(line.decode("utf-8", errors="surrogatepass"))


def repair(path: Path) -> None:
    """Cuts off what a killed run left half-written at the end of a file."""
    whole = 0
    for _, end in _members(path):
        whole = max(whole, end)
    size = path.stat().st_size
    if whole < size:
        logger.warning(f"{path.name}: its last {size - whole:,} bytes were half-written, and are sampled again.")
        with path.open("r+b") as file:
            file.truncate(whole)


def _members(path: Path) -> Iterator[tuple[bytes, int]]:
    """The text of each whole gzip member and where in the file it ends."""
    size = path.stat().st_size  # another process may write on: what it adds meanwhile is not looked at
    with path.open("rb") as file:
        started = position = 0
        data, member, parts = b"", zlib.decompressobj(zlib.MAX_WBITS | 16), []
        while data := data or file.read(min(CHUNK, size - file.tell())):
            try:
                parts.append(member.decompress(data))
            except zlib.error:  # what follows is no member
                break
            position, data = position + len(data) - len(member.unused_data), member.unused_data
            if member.eof:
                yield b"".join(parts), position
                started, member, parts = position, zlib.decompressobj(zlib.MAX_WBITS | 16), []
        file.seek(started)
        _check_end(path, started, file.read(size - started))


def _check_end(path: Path, start: int, rest: bytes) -> None:
    """Raises [`ValueError`] where whole members follow what is none: that is damage, and no half-written end."""
    found = rest.find(MEMBER, 1)
    while found != -1:
        member = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            member.decompress(rest[found:])
        except zlib.error:
            pass
        if member.eof:
            raise ValueError(
                f"'{path}' is damaged at byte {start:,}, and whole records follow. Restore the file, or delete it to "
                "sample again what it holds."
            )
        found = rest.find(MEMBER, found + 1)
