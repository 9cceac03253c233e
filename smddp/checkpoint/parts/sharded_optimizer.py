"""The state of a ZeroRedundancyOptimizer, which is sharded among the ranks, as a part of a checkpoint.

A checkpoint contains the whole state in the form of the plain optimizer. So any number of ranks can resume it, and so
can a plain optimizer of the same kind; the reverse works, too. PyTorch's own ``consolidate_state_dict`` gathers on one
rank only, but several ranks write here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn
from torch.optim import Optimizer

from smddp.checkpoint.parts.optimizer_options import DTYPES, NAMES
from smddp.checkpoint.parts.optimizers import NamedOptimizer
from smddp.checkpoint.parts.script_options import OnChange
from smddp.distributed import Ranks

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer


def is_sharded(optimizer: Optimizer) -> TypeGuard[ZeroRedundancyOptimizer]:
    """Return whether this optimizer is a ZeroRedundancyOptimizer."""
    home = sys.modules.get("torch.distributed.optim")  # not imported here, which takes 0.5 s
    return home is not None and isinstance(optimizer, home.ZeroRedundancyOptimizer)


class ShardedOptimizer(NamedOptimizer):
    """A ZeroRedundancyOptimizer as a part of a checkpoint, with the names of its parameters.

    During a snapshot each rank that writes needs CPU memory for the whole state, as much as the plain optimizer uses on
    its device (twice the weights for AdamW). The other ranks need memory for one share at a time.
    """

    def __init__(
        self, optimizer: ZeroRedundancyOptimizer, module: nn.Module, *, on_change: OnChange, logs: bool
    ) -> None:
        # Before its first step it has only the options that the script passed, without the defaults of its kind.
        _complete(optimizer.defaults, optimizer.optim.defaults)
        for group, local in zip(optimizer.param_groups, optimizer.optim.param_groups, strict=True):
            _complete(group, local)
        super().__init__(optimizer, module, on_change=on_change, logs=logs)
        self._sharded = optimizer
        self._gathered: dict[int, dict[str, Any]] | None = None

    def gather_state_dict(self, *, keep: bool) -> None:
        """Gather all shares for the next ``state_dict``; collective. Set `keep` on ranks that write."""
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
        """Return the number of each parameter in the plain optimizer, by its `id`."""
        weights = [weight for group in self._sharded.param_groups for weight in group["params"]]
        return {id(weight): number for number, weight in enumerate(weights)}

    def _own_share(self) -> dict[int, dict[str, Any]]:
        """Return this rank's share of the state, by parameter number."""
        local, numbers = self._sharded.optim, self._numbers()
        weights = [weight for group in local.param_groups for weight in group["params"]]
        return {numbers[id(weight)]: local.state[weight] for weight in weights if weight in local.state}


def _complete(options: dict[str, Any], all_options: Mapping[str, Any]) -> None:
    for name, value in all_options.items():
        options.setdefault(name, value)


def _layout(value: Any) -> Any:
    """Return a tensor on the meta device, with shape and dtype only. Return anything else as it is."""
    return value.detach().to("meta") if isinstance(value, torch.Tensor) else value


def _on_cpu(value: Any) -> Any:
    """Return a CPU copy of a tensor, uninitialized if it is on the meta device. Return anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty(value.shape, dtype=value.dtype) if value.is_meta else value.detach().cpu().contiguous()
