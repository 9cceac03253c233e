"""Check that the Trainer's arguments have the right types, before anything is built from them.

Whether model, optimizers and schedules fit each other is checked in `smddp.training.model_checks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from typing import Any, SupportsIndex

from torch import Tensor, nn
from torch.optim import Optimizer

from smddp.display_text import describe
from smddp.distributed import DDPOptions, Membership, Sharded
from smddp.job import Job
from smddp.metrics import Profile
from smddp.training.checkpoint_policy import CheckpointPolicy
from smddp.whole_numbers import as_whole_number

_SWITCH = (bool, "True or False")
_KINDS: dict[str, tuple[Any, str]] = {
    "job": (Job, "what smddp.run gives to main, or smddp.Job.detect()"),
    "model": (nn.Module, "the module, made: MyModel(), neither its class nor a function"),
    "checkpoints": (CheckpointPolicy, "smddp.CheckpointPolicy(...)"),
    "seed": (Integral, "a whole number"),
    "state": (Mapping | None, 'parts by their names, such as {"early_stopping": early}'),
    "name": (str | None, "a text, or None"),
    "move_model": _SWITCH,
    "parallel": (DDPOptions | Sharded, "smddp.DDPOptions(...) or smddp.Sharded(...)"),
    "trackers": (Sequence, "a list, such as [smddp.metrics.TensorBoard()]"),
    "progress": _SWITCH,
    "timing": _SWITCH,
    "profile": (Profile | None, "smddp.Profile(first=..., last=...), or None"),
}


def check_kinds(**arguments: object) -> None:
    """Raise TypeError for the first argument of the Trainer that has the wrong type."""
    for name, value in arguments.items():
        kind, wanted = _KINDS[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} is {describe(value)}: give {wanted}")


def as_counts(**counts: SupportsIndex) -> list[int]:
    """Return each argument as an int, in their order; raise ValueError unless it is a whole number of 1 or more."""
    return [as_count(f"{name}={count!r}", count) for name, count in counts.items()]


def as_count(what: str, count: SupportsIndex, *, least: int = 1) -> int:
    """Return a count as an int; raise ValueError, which begins with ``what``, unless it is one from ``least``."""
    with suppress(ValueError):
        if (number := as_whole_number(what, count)) >= least:
            return number
    raise ValueError(f"{what}: give a whole number of {least} or more")


def check_bounds(**bounds: object) -> None:
    """Raise ValueError unless each argument is a number greater than 0, or None for no bound."""
    for name, bound in bounds.items():
        if bound is not None and not (isinstance(bound, Real) and not isinstance(bound, bool) and float(bound) > 0):
            raise ValueError(f"{name}={bound!r}: give a number greater than 0, or None")


# Check, before the first step, that all ranks train with the same options.
#
# Nothing else would report a difference: weights that are clipped on one rank only, or stepped at another rate, drift
# apart silently, and ranks that log or save at different steps wait for each other for ever. DDP compares the model's
# parameters.
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
