"""The table of docs/reference/distributions.md, from what the tests expect: ``python -m tests.docker.table``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.docker.cells import DISTRIBUTIONS, EXPECTED, PLACES, TOOLKITS, Cell, Place, Toolkit

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "distributions.md"

_BEGIN = "<!-- made by tests/docker/table.py from what the tests expect: begin -->\n"
_END = "<!-- end -->\n"
_NEEDS_A_CONTAINER = "AWS's toolkit needs a container of its own: it installs into the image's Python, and starts sshd."


def render() -> str:
    """The table, and below it the reasons that its refusals name by number."""
    reasons: list[str] = []
    rows = [
        [distribution, toolkit, *(_entry(distribution, toolkit, place, reasons) for place in PLACES)]
        for distribution in DISTRIBUTIONS
        for toolkit in TOOLKITS
    ]
    lines = [_row(["distribution", "toolkit", *PLACES]), _row(["---"] * (2 + len(PLACES))), *map(_row, rows)]
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, start=1)]
    return "\n".join([*lines, "", *notes, ""])


def in_page() -> str:
    """The table that the page shows."""
    return _parts(PAGE.read_text())[1]


def write() -> None:
    """Put the table into the page."""
    before, _, after = _parts(PAGE.read_text())
    PAGE.write_text(f"{before}{_BEGIN}{render()}{_END}{after}")


def _entry(distribution: str, toolkit: Toolkit, place: Place, reasons: list[str]) -> str:
    outcome = EXPECTED.get(Cell(distribution=distribution, toolkit=toolkit, place=place))
    if outcome is None:
        return f"— ({_number(_NEEDS_A_CONTAINER, reasons)})"
    if outcome.refused:
        return f"refused ({_number(outcome.refused, reasons)})"
    return f"works: {outcome.summary}"


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
    write()
