"""The state of an optimizer, taken back by the names of its parameters, and only by an optimizer that it fits.

PyTorch numbers an optimizer's parameters: a script that lists its layers in another order would give each the moments
of another. And it takes the saved options without a word: a learning rate that the script changed would not hold.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

logger = logging.getLogger(__name__)

OnChange = Literal["keep", "take", "refuse"]
"""What a resume does where this script's optimizer has other options, its learning rate for instance, than the one that
was saved: keep the saved ones, take this script's, or refuse."""

NAMES = "param_names"
"""The key of a group's parameter names in a saved state."""
_IMPLEMENTATION = {"foreach", "maximize", "capturable", "differentiable", "fused", "params", NAMES, "initial_lr"}
"""Options of a group that do not tell one kind of optimizer from another."""
_NEW = {"decoupled_weight_decay"}
"""Options that an older PyTorch did not have."""
_OF_THE_KIND = {"decoupled_weight_decay", "amsgrad", "centered"}
"""Options that make another algorithm (AdamW of Adam), or need a state that the other one has not."""
_SCHEDULED = {"momentum", "betas"}
"""What a schedule may change besides the learning rate."""
_SHOWN = 5


class NamedOptimizer:
    """An optimizer as a part of a checkpoint, with the names of its parameters.

    Args:
        optimizer: It may be replaced in place only: its state is read and given through it.
        module: Has the names.
        on_change: What holds where options differ.
        speaks: Whether this rank tells of it in the log.
    """

    def __init__(self, optimizer: Optimizer, module: nn.Module, *, on_change: OnChange, speaks: bool) -> None:
        self._optimizer = optimizer
        self._names = {id(weight): name for name, weight in module.named_parameters()}
        self._on_change = on_change
        self._speaks = speaks

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, with ``param_names`` in each group."""
        state = self._taken()
        for group, names in zip(state["param_groups"], self._group_names(), strict=True):
            group[NAMES] = names
        return state

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """See that the state fits; nothing is changed.

        Raises:
            ValueError: It is one of another optimizer, or of other parameters, or options differ and may not.
        """
        check_optimizer(self._optimizer, state)
        if (saved := _saved_names(state)) is not None:
            own = [name for names in self._group_names() for name in names]
            if missing := [name for name in own if name not in saved] + [name for name in saved if name not in own]:
                raise ValueError(
                    f"it trained {len(saved)} parameters and this one trains {len(own)}; not in both: {some(missing)}"
                )
        changes = self._changes(state)
        if changes and self._on_change == "refuse":
            raise ValueError(f"{'; '.join(changes)}: on_change='refuse' allows no change")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state back, each parameter its own."""
        optimizer = self._optimizer
        changes = self._changes(state)
        own = [{**group, "params": None} for group in optimizer.param_groups]
        self._give(self._in_own_order(state))
        for group, before in zip(optimizer.param_groups, own, strict=True):
            if NAMES not in before:
                group.pop(NAMES, None)
            if self._on_change == "take":
                _take(group, before)
        if changes and self._speaks:
            holds = "this script's" if self._on_change == "take" else "the checkpoint's"
            logger.warning("the optimizer goes on with %s options: %s", holds, "; ".join(changes))

    def _taken(self) -> dict[str, Any]:
        return self._optimizer.state_dict()

    def _give(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(dict(state))

    def _group_names(self) -> list[list[str]]:
        return [
            [self._names.get(id(weight), f"#{number}") for number, weight in enumerate(group["params"])]
            for group in self._optimizer.param_groups
        ]

    def _in_own_order(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state with its parameters in the order and the groups of this optimizer."""
        saved = _saved_names(state)
        if saved is None:
            return dict(state)
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        number_of = dict(zip(saved, numbers, strict=True))
        moments, groups, number = {}, [], 0
        for group, names in zip(state["param_groups"], self._group_names(), strict=True):
            own_numbers = []
            for name in names:
                if number_of[name] in state["state"]:
                    moments[number] = state["state"][number_of[name]]
                own_numbers.append(number)
                number += 1
            groups.append({**group, "params": own_numbers, NAMES: names})
        return {**state, "state": moments, "param_groups": groups}

    def _changes(self, state: Mapping[str, Any]) -> list[str]:
        """Say which of this script's options are not the saved ones."""
        told = []
        for number, (saved, own) in enumerate(zip(state["param_groups"], self._optimizer.param_groups, strict=True)):
            is_scheduled = "initial_lr" in saved and "initial_lr" in own
            for name in sorted((set(saved) & set(own)) - _IMPLEMENTATION - (_SCHEDULED if is_scheduled else set())):
                compared = "initial_lr" if name == "lr" and is_scheduled else name
                if _plain(saved[compared]) != _plain(own[compared]):
                    group = f" of group {number}" if len(state["param_groups"]) > 1 else ""
                    told.append(
                        f"{name}{group} was {_plain(saved[compared])} when it was saved, and the script has "
                        f"{_plain(own[compared])}"
                    )
        return told


def check_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """See that a state can be one of this optimizer.

    Raises:
        ValueError: It is one of another kind, or of other parameters.
    """
    groups, own = state["param_groups"], optimizer.param_groups
    sizes, own_sizes = [len(group["params"]) for group in groups], [len(group["params"]) for group in own]
    if len(sizes) != len(own_sizes) or (sizes != own_sizes and _saved_names(state) is None):
        raise ValueError(f"it has groups of {sizes} parameters, and this run's optimizer has groups of {own_sizes}")
    for saved in groups:
        if missing := sorted(set(optimizer.defaults) - set(saved) - _IMPLEMENTATION - _NEW):
            raise ValueError(
                f"it is one of another kind than this run's {type(optimizer).__name__}: it has no {some(missing)}"
            )
        for name in _OF_THE_KIND & set(saved) & set(optimizer.defaults):
            if saved[name] != optimizer.defaults[name]:
                raise ValueError(
                    f"it is one of another kind than this run's {type(optimizer).__name__}: {name} was {saved[name]}, "
                    f"and is {optimizer.defaults[name]}"
                )
    if _saved_names(state) is not None:
        return  # the parameters are found by name
    weights = [weight for group in own for weight in group["params"]]
    numbers = [number for group in groups for number in group["params"]]
    for number, weight in zip(numbers, weights, strict=True):
        for name, value in state["state"].get(number, {}).items():
            if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape != weight.shape:
                raise ValueError(
                    f"parameter {number} has {name} of shape {list(value.shape)}, and this run's is of shape "
                    f"{list(weight.shape)}"
                )


def _saved_names(state: Mapping[str, Any]) -> list[str] | None:
    """Return the names of all parameters, or None if they were not saved."""
    names = [name for group in state["param_groups"] for name in group.get(NAMES, [None])]
    return None if None in names or len(set(names)) != len(names) else names


def _take(group: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Give a group that was restored the options that it had before; the schedule's progress stays."""
    is_scheduled = "initial_lr" in group and "initial_lr" in before
    for name in set(before) & set(group):
        if name in _IMPLEMENTATION or (is_scheduled and name in _SCHEDULED):
            continue
        if name == "lr" and is_scheduled:
            group["lr"] = group["lr"] * before["initial_lr"] / group["initial_lr"]
            group["initial_lr"] = before["initial_lr"]
        else:
            group[name] = before[name]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value


def some(names: list[str]) -> str:
    """Return the first few names, and how many there are besides, for people."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
