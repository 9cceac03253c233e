"""Whether the ranks divide a model's weights among them, by FSDP or tensor parallelism.

Whatever replicates or saves whole weights refuses such a model at its start. The classes are known by their names: to
import them takes a second, and a script that shards nothing needs none.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

_WRAPPERS = {"FullyShardedDataParallel", "FSDPModule"}


def find_sharding(module: nn.Module) -> str | None:
    """Say what shards a module, for people; None if each rank has all of it."""
    for name, part in module.named_modules():
        if found := next((each.__name__ for each in type(part).__mro__ if each.__name__ in _WRAPPERS), None):
            return f"{f'its module {name}' if name else 'it'} is a {found}"
    return find_sharded_weight([*module.named_parameters(), *module.named_buffers()])


def find_sharded_weight(weights: Iterable[tuple[str, Tensor]]) -> str | None:
    """Say which of the weights is a DTensor, for people; None if none is."""
    return next((f"{name} is a DTensor" for name, weight in weights if hasattr(weight, "placements")), None)
