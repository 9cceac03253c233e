"""Whether all ranks train with the same options, before the first step.

Where they don't, nothing else would tell: weights that were clipped on one rank only, or stepped at another rate, drift
apart in silence, and ranks that log or save at other steps wait for each other for ever. The model's parameters are
compared by DDP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from smddp.distributed import Membership


def check_options_agree(membership: Membership, **options: object) -> None:
    """See that all ranks have the same options, by their text; all ranks must call it.

    Raises:
        ValueError: On every rank: one has others.
    """
    if membership.cluster.world_size == 1:
        return
    own = {name: repr(value) for name, value in options.items()}
    ranks = membership.ranks.gather(lambda: own)
    for rank, given in enumerate(ranks):
        for name, value in ranks[0].items():
            if given[name] != value:
                raise ValueError(
                    f"the ranks were given different options: {name} is {value} on rank 0 and {given[name]} on rank "
                    f"{rank}; their weights or their steps would drift apart: give all ranks the same"
                )


def optimizer_options(optimizers: Sequence[Optimizer]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return each optimizer's kind, and the options of its groups of parameters."""
    return [
        (
            type(optimizer).__name__,
            [
                {name: _plain(value) for name, value in group.items() if name != "params"}
                for group in optimizer.param_groups
            ],
        )
        for optimizer in optimizers
    ]


def _plain(value: object) -> object:
    """Return what ranks can compare: a number, text or list itself, and the class of any other object."""
    if isinstance(value, Tensor):  # a rate may be one, on the rank's own device
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, int | float | str) else type(value).__name__
