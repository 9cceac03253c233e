"""The table of docs/distributions.md, from the outcomes of a run: ``python -m tests.docker.table RESULTS``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.docker.cells import DISTRIBUTIONS, PLACES, TOOLKITS, Cell, Outcome, read

PAGE = Path(__file__).parents[2] / "docs" / "distributions.md"

_BEGIN = "<!-- made by tests/docker/table.py from the test's results: begin -->\n"
_END = "<!-- end -->\n"
_NEEDS_A_CONTAINER = "AWS's toolkit needs a container of its own: it installs into the image's Python, and starts sshd."


def render(outcomes: Mapping[Cell, Outcome]) -> str:
    """The table, and below it the reasons that its refusals name by number."""
    reasons: list[str] = []
    rows = [
        [distribution, toolkit, *(_entry(outcomes, distribution, toolkit, place, reasons) for place in PLACES)]
        for distribution in DISTRIBUTIONS
        for toolkit in TOOLKITS
    ]
    lines = [_row(["distribution", "toolkit", *PLACES]), _row(["---"] * (2 + len(PLACES))), *map(_row, rows)]
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)]
    return "\n".join([*lines, "", *notes, ""])


def in_page() -> str:
    """The table that the page shows."""
    return _parts(PAGE.read_text())[1]


def write(outcomes: Mapping[Cell, Outcome]) -> None:
    """Put the table of a run into the page."""
    before, _, after = _parts(PAGE.read_text())
    PAGE.write_text(f"{before}{_BEGIN}{render(outcomes)}{_END}{after}")


def _entry(outcomes: Mapping[Cell, Outcome], distribution: str, toolkit: str, place: str, reasons: list[str]) -> str:
    told = next((one for cell, one in outcomes.items() if _is(cell, distribution, toolkit, place)), None)
    if told is None:
        return f"— ({_number(_NEEDS_A_CONTAINER, reasons)})"
    if told.refused:
        return f"refused ({_number(told.refused, reasons)})"
    return f"works: {told.launcher}, {told.ranks} ranks, {told.backend}"


def _is(cell: Cell, *expected: str) -> bool:
    return (cell.distribution, cell.toolkit, cell.place) == expected


def _number(reason: str, reasons: list[str]) -> int:
    if reason not in reasons:
        reasons.append(reason)
    return reasons.index(reason) + 1


def _row(entries: Iterable[str]) -> str:
    return f"| {' | '.join(entries)} |"


def _parts(page: str) -> tuple[str, str, str]:
    before, _, rest = page.partition(_BEGIN)
    table, _, after = rest.partition(_END)
    return before, table, after


if __name__ == "__main__":
    write(read(Path(sys.argv[1])))
