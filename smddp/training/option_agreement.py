"""Check, before the first step, that all ranks train with the same options.

Nothing else would report a difference: weights that are clipped on one rank only, or stepped at another rate, drift
apart silently, and ranks that log or save at different steps wait for each other for ever. DDP compares the model's
parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from smddp.distributed import Membership


def check_options_agree(membership: Membership, **options: object) -> None:
    """Raise ValueError on every rank if the ranks' options differ, compared as text; all ranks must call it."""
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
    """Return each optimizer's class, and the options of its parameter groups."""
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
    """Return a value that ranks can compare: a number, text or list as it is, any other object by its class."""
    if isinstance(value, Tensor):  # a rate may be one, on the rank's own device
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, int | float | str) else type(value).__name__
