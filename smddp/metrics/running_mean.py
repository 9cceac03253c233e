"""Metrics over all ranks: a mean, sum or maximum of one moment, and a mean of many steps that a resume continues."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from smddp.distributed import Membership, current_membership, sum_over_ranks

Reduce = Literal["mean", "sum", "max"]


class RunningMean:
    """A mean of the values of all ranks; ``Trainer(state={"train_loss": mean})`` saves it in the checkpoints.

    Examples:
        >>> mean = RunningMean()
        >>> mean.add(torch.tensor(2.0), count=3)
        >>> mean.add(6.0)
        >>> mean.mean()
        3.0
    """

    def __init__(self) -> None:
        self._own: Tensor | None = None  # this rank's sum, on the device of its values: no wait for a GPU
        self._own_count = 0.0
        self._shared: Tensor = torch.zeros(2, dtype=torch.float64)  # sum and count of all ranks
        self.membership: Membership | None = None
        """Set by a Trainer whose ranks compute together on the same data; None is the process's."""

    def add(self, value: Tensor | float, count: float = 1) -> None:
        """Add a value of this rank, without waiting for a GPU.

        Args:
            value: A number, or a tensor of one element: the mean of ``count`` samples.
            count: The weight of the value.

        Raises:
            ValueError: The value has several elements, or the count is negative.
        """
        if isinstance(value, Tensor) and value.numel() != 1:
            raise ValueError(f"a tensor of shape {tuple(value.shape)} is no single value: add value.mean(), or each")
        if not count >= 0:
            raise ValueError(f"count={count} must be 0 or greater: it is how many samples the value is the mean of")
        value = torch.as_tensor(value, dtype=torch.float64).detach().reshape(())
        if self._own is None:
            self._own = value * count
        else:
            device = value.device if self._own.is_cpu else self._own.device  # never copy from a GPU to the CPU
            self._own = self._own.to(device).add_(value.to(device), alpha=count)
        self._own_count += count

    def mean(self) -> float:
        """Return the mean over all ranks, NaN if nothing was added; all ranks must call it."""
        self.share()
        total, count = self._shared.tolist()
        return total / count if count else float("nan")

    def share(self) -> None:
        """Sum the values that the ranks added since the last call; all must call it. It does not wait for a GPU.

        The Trainer calls it before each save. In a loop of your own, call it before ``state_dict``.
        """
        membership = self.membership or current_membership()
        if membership is None or membership.store is None:
            if self._own is not None:
                self._shared = self._shared.to(self._own.device) + self._vector()
        else:
            counts = self._own is not None and not membership.repeats
            own = self._vector() if counts else torch.zeros(2, dtype=torch.float64)
            # On the same device on all ranks, including ranks without a value.
            self._shared = self._shared.to(membership.device) + sum_over_ranks(own.to(membership.device), membership)
        self._own, self._own_count = None, 0.0

    def reset(self) -> None:
        """Forget all values, such as after the `mean` of an epoch.

        Not at the start of an epoch: a resume in mid-epoch has restored the values of its first batches.
        """
        self._own, self._own_count = None, 0.0
        self._shared = torch.zeros(2, dtype=torch.float64)

    def state_dict(self) -> dict[str, Any]:
        """Return sum and count over all ranks, as of the last `share`; one rank alone calls `share` first."""
        membership = current_membership()
        if membership is None or membership.store is None:
            self.share()
        return {"sum_and_count": self._shared.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore sum and count, on any number of ranks."""
        self.reset()
        self._shared = state["sum_and_count"].clone()

    def _vector(self) -> Tensor:
        assert self._own is not None
        count = torch.full((), self._own_count, dtype=torch.float64, device=self._own.device)
        return torch.stack([self._own, count])


def check_reduce(reduce: str | None) -> None:
    """Raise ValueError for an unknown reduction; None is allowed."""
    if reduce is not None and reduce not in get_args(Reduce):
        raise ValueError(f"reduce={reduce!r}: give 'mean', 'sum' or 'max' over the ranks, or None for rank 0's own")


def over_ranks(numbers: Callable[[], Mapping[str, float]], reduce: Reduce, membership: Membership) -> dict[str, float]:
    """Return each metric reduced over the ranks, the same to the last bit on all of them; all must call it.

    Ranks that compute the same, by tensor parallelism, count once. If ``numbers`` raises on one rank, the others raise
    PeerFailedError. Raise ValueError on every rank if their names
    differ.
    """
    told = membership.ranks.gather(lambda: (membership.repeats, dict(numbers())))
    ranks = [each for _, each in told]
    for rank, each in enumerate(ranks):
        if each.keys() != ranks[0].keys():
            raise ValueError(
                f"rank 0 logged {', '.join(ranks[0]) or 'nothing'}, and rank {rank} {', '.join(each) or 'nothing'}: "
                "with reduce, all ranks must log the same metrics; give NaN where a rank has none"
            )
    counted = [each for repeats, each in told if not repeats]
    return {name: _REDUCTIONS[reduce]([each[name] for each in counted]) for name in ranks[0]}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _largest(values: Sequence[float]) -> float:
    return math.nan if any(math.isnan(value) for value in values) else max(values)


_REDUCTIONS: dict[Reduce, Callable[[Sequence[float]], float]] = {"mean": _mean, "sum": sum, "max": _largest}
