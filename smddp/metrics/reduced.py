"""Reduce metrics over all ranks to their mean, sum or maximum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from smddp.distributed import Membership

Reduce = Literal["mean", "sum", "max"]


def check_reduce(reduce: str | None) -> None:
    """Raise ValueError for an unknown reduction; None is allowed."""
    if reduce is not None and reduce not in get_args(Reduce):
        raise ValueError(f"reduce={reduce!r}: give 'mean', 'sum' or 'max' over the ranks, or None for rank 0's own")


def over_ranks(numbers: Callable[[], Mapping[str, float]], reduce: Reduce, membership: Membership) -> dict[str, float]:
    """Return each metric reduced over the ranks, the same to the last bit on all of them; all must call it.

    If ``numbers`` raises on one rank, the others raise PeerFailedError. Raise ValueError on every rank if their names
    differ.
    """
    ranks = membership.ranks.gather(lambda: dict(numbers()))
    for rank, each in enumerate(ranks):
        if each.keys() != ranks[0].keys():
            raise ValueError(
                f"rank 0 logged {', '.join(ranks[0]) or 'nothing'}, and rank {rank} {', '.join(each) or 'nothing'}: "
                "with reduce, all ranks must log the same metrics; give NaN where a rank has none"
            )
    return {name: _REDUCTIONS[reduce]([each[name] for each in ranks]) for name in ranks[0]}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _largest(values: Sequence[float]) -> float:
    return math.nan if any(math.isnan(value) for value in values) else max(values)


_REDUCTIONS: dict[Reduce, Callable[[Sequence[float]], float]] = {"mean": _mean, "sum": sum, "max": _largest}
