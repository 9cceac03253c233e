"""Finds the rank that is slower than the others, from glances at each rank's phase at equal intervals.

The ranks of a job take equally long for a step, since they wait for each other. So a slow rank is the one that waits
least, and the phase in which it is seen more often than the others is the one that is slow.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from smddp.watch.position import PHASES, WAITING, Position

_LEAST_GLANCES = 100
"""Glances at each rank in one comparison."""
_MARGIN = 0.15
"""A rank is slow if it is busy for so much more of the time than the others; about 2.6 standard deviations."""
_IN_A_ROW = 3
"""A rank is named if so many comparisons in a row find it: by chance, once in ten million."""
_COLUMNS = (WAITING, *PHASES, "script")


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that the others wait for."""

    rank: int
    phase: str
    """The phase in which it is slow."""
    share: float
    """The share of their time that the others wait for it."""
    text: str
    """One sentence for a person."""


def to_json(positions: Sequence[Position]) -> str:
    """Return the ranks' shares of time by phase since the watchdog began, as JSON."""
    ranks = [{"rank": each.rank, "host": each.host, "shares": _shares(Counter(each.glances))} for each in positions]
    return json.dumps({"ranks": ranks}, indent=1)


class Pace:
    """Compares the ranks of a job of several, each time that all were seen often enough since the last comparison."""

    def __init__(self) -> None:
        self._before: Mapping[int, Counter[str]] = {}
        self._found: list[int | None] = []
        self._named: set[tuple[int, str]] = set()

    @property
    def has_named(self) -> bool:
        """Whether a rank was named."""
        return bool(self._named)

    def compare(self, positions: Sequence[Position]) -> Straggler | None:
        """Return a rank that is slow for some comparisons now, once for each of its phases."""
        glances = {each.rank: Counter(each.glances) for each in positions}
        if self._before.keys() != glances.keys() or len(glances) < 2:  # a rank alone waits for nobody
            self._before = glances
            return None
        since = {rank: glances[rank] - self._before[rank] for rank in glances}
        if min(map(Counter.total, since.values())) < _LEAST_GLANCES:
            return None
        self._before = glances
        shares = {rank: _shares(each) for rank, each in since.items()}
        slow = find_slow(shares)
        self._found = [*self._found, slow[0]][-_IN_A_ROW:] if slow else []
        if slow is None or self._found != [slow[0]] * _IN_A_ROW or slow in self._named:
            return None
        self._named.add(slow)
        share = _waiting_of_others(slow[0], shares)
        return Straggler(*slow, share, _sentence(*slow, share, shares, positions))

    def table(self, positions: Sequence[Position]) -> str:
        """Return the shares of all ranks since the watchdog began, in percent, as lines of a table."""
        shares = {each.rank: _shares(Counter(each.glances)) for each in positions}
        columns = [name for name in _COLUMNS if any(name in each for each in shares.values())]
        rows = [["rank", *columns]]
        rows += [[str(rank), *(_percent(each.get(name, 0.0)) for name in columns)] for rank, each in shares.items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def find_slow(shares: Mapping[int, Mapping[str, float]]) -> tuple[int, str] | None:
    """Return the rank that the others wait for, and the phase in which it is slow; None if there is none."""
    rank, share = min(shares.items(), key=lambda item: item[1].get(WAITING, 0.0))
    others = [each for other, each in shares.items() if other != rank]
    if _waiting_of_others(rank, shares) - share.get(WAITING, 0.0) < _MARGIN:
        return None
    phases = [name for name in share if name != WAITING]
    return rank, max(phases, key=lambda name: share[name] - median(each.get(name, 0.0) for each in others))


def _shares(glances: Counter[str]) -> dict[str, float]:
    return {name: number / glances.total() for name, number in glances.items()}


def _waiting_of_others(rank: int, shares: Mapping[int, Mapping[str, float]]) -> float:
    return median(each.get(WAITING, 0.0) for other, each in shares.items() if other != rank)


def _sentence(
    rank: int, phase: str, waiting: float, shares: Mapping[int, Mapping[str, float]], positions: Sequence[Position]
) -> str:
    own = next(each for each in positions if each.rank == rank)
    others = [each for other, each in shares.items() if other != rank]
    usual = median(each.get(phase, 0.0) for each in others)
    who = "the other rank" if len(others) == 1 else "the other ranks"
    return (
        f"rank {rank} on {own.host} makes {who} wait for {_percent(waiting)} % of the time. It spends "
        f"{_percent(shares[rank][phase])} % of its time in the phase {phase}, {who} {_percent(usual)} %: "
        f"{own.lines.get(phase, 'at an unknown line')}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"
