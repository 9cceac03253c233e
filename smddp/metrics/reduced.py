"""Metrics over all ranks: the mean, the sum or the largest of what each rank measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from smddp.distributed import Membership

Reduce = Literal["mean", "sum", "max"]


def check_reduce(reduce: str | None) -> None:
    """See that metrics can be reduced so.

    Raises:
        ValueError: They can't.
    """
    if reduce is not None and reduce not in get_args(Reduce):
        raise ValueError(f"reduce={reduce!r}: give 'mean', 'sum' or 'max' over the ranks, or None for rank 0's own")


def over_ranks(numbers: Callable[[], Mapping[str, float]], reduce: Reduce, membership: Membership) -> dict[str, float]:
    """Return each metric over the ranks, the same to the last bit on all of them; all must call it.

    Args:
        numbers: Gives this rank's, by name; what it raises, no rank is left waiting for.
        reduce: How.
        membership: The ranks.

    Raises:
        ValueError: On every rank, if they have other metrics.
        PeerFailedError: On every rank where ``numbers`` did not raise, if it did on another.
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
