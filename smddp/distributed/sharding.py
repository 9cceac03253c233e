"""Detect whether the ranks divide a model's weights among them, by FSDP or tensor parallelism.

Code that replicates or saves whole weights refuses such a model at its start. The classes are recognized by name:
importing them takes a second.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

_WRAPPERS = {"FullyShardedDataParallel", "FSDPModule"}


def find_sharding(module: nn.Module) -> str | None:
    """Describe, for people, how a module is sharded; None if each rank has all of it."""
    for name, part in module.named_modules():
        if found := next((each.__name__ for each in type(part).__mro__ if each.__name__ in _WRAPPERS), None):
            return f"{f'its module {name}' if name else 'it'} is a {found}"
    return find_sharded_weight([*module.named_parameters(), *module.named_buffers()])


def find_sharded_weight(weights: Iterable[tuple[str, Tensor]]) -> str | None:
    """Name, for people, the first weight that is a DTensor, or None."""
    return next((f"{name} is a DTensor" for name, weight in weights if hasattr(weight, "placements")), None)
