"""What became of the rows of a dataset, told once and in full."""

from collections.abc import Sequence
from dataclasses import dataclass, field

ON_BAD_ROWS = ("drop", "error")
SHOWN = 5  # row numbers in a line of the report


@dataclass
class DataReport:
    """
    What became of the rows of a dataset. Its `str` is what a run prints.

    Args:
        name (`str`):
            The dataset.
        unit (`str`):
            What the numbers below count: `"row"` or `"line"`.
        read (`int`, *optional*, defaults to `0`):
            How many rows were read.
        rows (`list[int]`, *optional*):
            Numbers of those that are trained on.
        columns (`str`, *optional*):
            Where problems and answers were found.
        unparsed (`dict[int, str]`, *optional*):
            Rows that could not be read, each with its reason.
        dropped (`dict[str, list[int]]`, *optional*):
            Dropped rows by reason.
        warned (`dict[str, list[int]]`, *optional*):
            Rows that are kept but remarkable, by what is.
    """

    name: str
    unit: str
    read: int = 0
    rows: list[int] = field(default_factory=list)
    columns: str = ""
    unparsed: dict[int, str] = field(default_factory=dict)
    dropped: dict[str, list[int]] = field(default_factory=dict)
    warned: dict[str, list[int]] = field(default_factory=dict)

    @property
    def kept(self) -> int:
        return len(self.rows)

    @property
    def num_dropped(self) -> int:
        return sum(map(len, self.dropped.values()))

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.read} rows read, {self.kept} kept, {self.num_dropped} dropped{self.columns}"]
        shown = list(self.unparsed.items())[:SHOWN]
        lines += [f"  unreadable: {self.unit} {number} {why}" for number, why in shown]
        if len(self.unparsed) > SHOWN:
            lines.append(f"  unreadable: {len(self.unparsed) - SHOWN} more {self.unit}s")
        for kind, reasons in (("dropped", self.dropped), ("warning", self.warned)):
            lines += [f"  {kind} {len(rows)}: {why} ({self.places(rows)})" for why, rows in reasons.items()]
        return "\n".join(lines)

    def places(self, rows: Sequence[int]) -> str:
        """`line 3` or `lines 3, 7, 9 and 12 more`."""
        more = f" and {len(rows) - SHOWN} more" if len(rows) > SHOWN else ""
        return f"{self.unit}{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:SHOWN]))}{more}"

    def drop(self, positions: Sequence[int], reason: str) -> None:
        """Notes that the rows at these positions of what was kept until now are dropped, too."""
        if positions:
            gone = set(positions)
            self.dropped[reason] = [self.rows[i] for i in positions]
            self.rows = [row for i, row in enumerate(self.rows) if i not in gone]

    def check(self, on_bad_rows: str) -> None:
        """Raises [`BadDataError`] if a row could not be read, none is left, or one is bad and that is an error."""
        if self.unparsed:
            raise BadDataError(f"'{self.name}' cannot be read{self.first_unparsed}.", self)
        worst = max(self.dropped.items(), key=lambda item: len(item[1]), default=None)
        if worst is None:
            return
        summary = f"{worst[0]} ({self.places(worst[1])})"
        if self.kept == 0:
            raise BadDataError(
                f"of the {self.read} rows of '{self.name}' none is left. The most frequent reason: {summary}.", self
            )
        if on_bad_rows == "error":
            raise BadDataError(
                f"`on_bad_rows` is 'error', and {self.num_dropped} of the {self.read} rows of '{self.name}' are bad. "
                f"The most frequent reason: {summary}.",
                self,
            )

    @property
    def first_unparsed(self) -> str:
        if not self.unparsed:
            return ""
        first, why = next(iter(self.unparsed.items()))
        return f": {self.unit} {first} {why}, the first of {len(self.unparsed)} such"


class BadDataError(ValueError):
    """A dataset that cannot be trained on. `report` says what is wrong with which rows; `str` is one line of it."""

    def __init__(self, message: str, report: DataReport):
        super().__init__(message)
        self.report = report
