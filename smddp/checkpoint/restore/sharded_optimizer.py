"""The state of a ZeroRedundancyOptimizer, of which each rank keeps only its share, as a part of a checkpoint.

A checkpoint has it whole, in the form of the plain optimizer's: so it is resumed on any number of ranks, and a plain
optimizer of the same kind goes on from it, or it from that one's. PyTorch's own ``consolidate_state_dict`` gathers on
one rank, while several share the writing here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer

from smddp.checkpoint.restore.optimizers import DTYPES, NAMES, NamedOptimizer
from smddp.checkpoint.restore.script_options import OnChange
from smddp.distributed import Ranks

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer


def is_sharded(optimizer: Optimizer) -> TypeGuard[ZeroRedundancyOptimizer]:
    """Return whether each rank keeps only a share of this optimizer's state."""
    home = sys.modules.get("torch.distributed.optim")  # to import it takes half a second; who has one, has done so
    return home is not None and isinstance(optimizer, home.ZeroRedundancyOptimizer)


class ShardedOptimizer(NamedOptimizer):
    """A ZeroRedundancyOptimizer as a part of a checkpoint, with the names of its parameters.

    While a save takes the state, each rank that writes has all of it in the CPU's memory: as much as the plain
    optimizer has on its device (twice the weights for AdamW). The other ranks have one rank's share at a time.

    Args:
        optimizer: As `NamedOptimizer` has it.
        module: Has the names.
        on_change: What holds where options differ.
        speaks: Whether this rank tells of it in the log.
    """

    def __init__(
        self, optimizer: ZeroRedundancyOptimizer, module: nn.Module, *, on_change: OnChange, speaks: bool
    ) -> None:
        # Before its first step it only knows the options that it was given, not those that its kind has besides.
        _complete(optimizer.defaults, optimizer.optim.defaults)
        for group, local in zip(optimizer.param_groups, optimizer.optim.param_groups, strict=True):
            _complete(group, local)
        super().__init__(optimizer, module, on_change=on_change, speaks=speaks)
        self._sharded = optimizer
        self._gathered: dict[int, dict[str, Any]] | None = None

    def gather_state_dict(self, *, keep: bool) -> None:
        """Bring the shares of all ranks together, for the next ``state_dict``; collective.

        Args:
            keep: Whether this rank needs the state.
        """
        ranks = Ranks.current()
        own = self._own_share()
        layouts = ranks.gather(
            lambda: {number: {name: _layout(value) for name, value in each.items()} for number, each in own.items()}
        )
        gathered: dict[int, dict[str, Any]] = {}
        for owner, layout in enumerate(layouts):
            share = own if owner == ranks.rank else layout
            values = {number: {name: _on_cpu(each[name]) for name in each} for number, each in share.items()}
            tensors = [value for each in values.values() for value in each.values() if isinstance(value, torch.Tensor)]
            ranks.broadcast(tensors, source=owner)
            if keep:
                gathered |= values
        self._gathered = dict(sorted(gathered.items())) if keep else None

    @property
    def _kind(self) -> str:
        return type(self._sharded.optim).__name__

    @property
    def _states(self) -> Mapping[torch.Tensor, dict[str, Any]]:
        return self._sharded.optim.state  # type: ignore[no-any-return]

    def _taken(self) -> dict[str, Any]:
        assert self._gathered is not None, "gather_state_dict comes before state_dict"
        state, self._gathered = self._gathered, None
        numbers = self._numbers()
        groups = [
            {**group, "params": [numbers[id(weight)] for weight in group["params"]]}
            for group in self._sharded.param_groups
        ]
        return {"state": state, "param_groups": groups}

    def _give(self, state: Mapping[str, Any]) -> None:
        optimizer, local, numbers = self._sharded, self._sharded.optim, self._numbers()
        Optimizer.load_state_dict(optimizer, {"state": {}, "param_groups": state["param_groups"]})
        share, groups, local_number = {}, [], 0
        for saved, group in zip(state["param_groups"], local.param_groups, strict=True):
            local_numbers = []
            for weight in group["params"]:
                if (number := numbers[id(weight)]) in state["state"]:
                    share[local_number] = state["state"][number]
                local_numbers.append(local_number)
                local_number += 1
            options = {name: value for name, value in saved.items() if name not in (NAMES, DTYPES)}
            groups.append({**options, "params": local_numbers})
        local.load_state_dict({"state": share, "param_groups": groups})

    def _numbers(self) -> dict[int, int]:
        """Return the number of each parameter by its identity, as the plain optimizer numbers them."""
        weights = [weight for group in self._sharded.param_groups for weight in group["params"]]
        return {id(weight): number for number, weight in enumerate(weights)}

    def _own_share(self) -> dict[int, dict[str, Any]]:
        """Return what this rank keeps, by the parameter's number."""
        local, numbers = self._sharded.optim, self._numbers()
        weights = [weight for group in local.param_groups for weight in group["params"]]
        return {numbers[id(weight)]: local.state[weight] for weight in weights if weight in local.state}


def _complete(options: dict[str, Any], all_options: Mapping[str, Any]) -> None:
    for name, value in all_options.items():
        options.setdefault(name, value)


def _layout(value: Any) -> Any:
    """Return a tensor's shape and dtype, as a tensor without values; anything else as it is."""
    return value.detach().to("meta") if isinstance(value, torch.Tensor) else value


def _on_cpu(value: Any) -> Any:
    """Return a tensor of these values, or memory for one that has none; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype) if value.is_meta else value.detach().cpu().contiguous()
