"""Loads an optimizer's state by parameter names, and only if it fits the optimizer.

PyTorch numbers the parameters and groups: a script that lists its layers in another order would load the moments and
options of the wrong layers. PyTorch also loads the saved options silently: a learning rate changed in the script would
have no effect.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import chain, count
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from smddp.checkpoint.format.plain_names import plain_name
from smddp.checkpoint.parts.optimizer_options import (
    DTYPES,
    IMPLEMENTATION,
    NAMES,
    RATE_OPTIONS,
    GroupChanges,
    compare,
    group_options,
)
from smddp.checkpoint.parts.script_options import SCRIPT_OPTIONS, TAKE_REMEDY, OnChange, copied
from smddp.display_text import shown_names

logger = logging.getLogger(__name__)

KIND = "kind"
"""The key of the optimizer's class in a saved state."""
_NOT_OF_THE_KIND = {*IMPLEMENTATION, "maximize", "initial_lr"}
"""Options of a group that do not distinguish kinds of optimizers."""
_NEW = {"decoupled_weight_decay"}
"""Options that older versions of PyTorch lack."""
_OF_THE_KIND = {"decoupled_weight_decay", "amsgrad", "centered"}
"""Options that select another algorithm (AdamW instead of Adam), or need additional state."""
_PLACEHOLDER = re.compile(r"#\d+")
"""The placeholder name of a parameter that is not in the module."""


class NamedOptimizer:
    """An optimizer as a part of a checkpoint, with the names of its parameters.

    It looks up names in `module` at each use, as a script may replace layers or add groups. It logs if `logs`.
    """

    def __init__(self, optimizer: Optimizer, module: nn.Module, *, on_change: OnChange, logs: bool) -> None:
        self.optimizer = optimizer
        self.changes: list[GroupChanges] = []
        """The changes of each group against the last state checked or loaded."""
        self._module = module
        self._on_change = on_change
        self._logs = logs
        self._script: list[dict[str, Any]] = []
        self._script = self.script_options()

    def note_added_groups(self) -> None:
        """Record the options of added groups. Call this before a schedule changes them."""
        if len(self.optimizer.param_groups) != len(self._script):
            self.script_options()

    def script_options(self) -> list[dict[str, Any]]:
        """Return the options that the script gave each group, before any schedule changed them."""
        groups = self.optimizer.param_groups
        added = [group_options(group) for group in groups[len(self._script) :]]
        self._script = [*self._script[: len(groups)], *added]
        return self._script

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, with ``param_names`` in each group and the script's initial options."""
        state = self._taken()
        groups = self.optimizer.param_groups
        for group, own, names in zip(state["param_groups"], groups, self._group_names(), strict=True):
            group[NAMES], group[DTYPES] = names, [str(weight.dtype) for weight in own["params"]]
        return {**state, KIND: self._kind, SCRIPT_OPTIONS: copied(self.script_options())}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if kind or parameters do not fit, or an option differs that must not. Change nothing."""
        if (saved := state.get(KIND, self._kind)) != self._kind:
            raise ValueError(
                f"it is the state of {saved}, not of this run's {self._kind}: train with {saved}, or start anew"
            )
        check_optimizer(self.optimizer, state, by_name=self._saved_groups(state) is not None)
        self.changes = self._compare(state)
        told = self._told()
        if told and self._on_change == "refuse":
            raise ValueError(f"{'; '.join(told)}: on_change='refuse' allows no change")
        for each in self.changes:
            if each.unlike and self._on_change == "keep":
                raise ValueError(
                    f"{each.told_unlike()}: one group cannot keep the options of several; group the parameters "
                    "as that script did, or resume with on_change='take', which takes this script's options"
                )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of each parameter by its name, with the options that `on_change` selects."""
        optimizer = self.optimizer
        own = self.script_options()
        self.changes = self._compare(state)
        told = self._told()
        have_names = [NAMES in group for group in optimizer.param_groups]
        ordered = self._in_own_order(state)
        self._give(ordered)
        self._keep_dtypes(ordered)
        keep_strides(self._states)
        for group, has_names in zip(optimizer.param_groups, have_names, strict=True):
            group.pop(DTYPES, None)
            if not has_names:
                group.pop(NAMES, None)
        if self._on_change == "take":
            for group, script, each in zip(optimizer.param_groups, own, self.changes, strict=True):
                group.update({name: copied(script[name]) for name in each.taken})
                for name in RATE_OPTIONS & set(group) - set(script):  # from a schedule that this script lacks
                    del group[name]
        else:  # a later script is compared with the options in effect now
            self._script = [
                {name: value for name, value in script.items() if name not in RATE_OPTIONS} | each.begin
                for script, each in zip(own, self.changes, strict=True)
            ]
        if told and self._logs:
            holds, remedy = ("this script's", "") if self._on_change == "take" else ("the checkpoint's", TAKE_REMEDY)
            logger.warning("the optimizer resumes with %s options: %s%s", holds, "; ".join(told), remedy)

    def weights_of(self, state: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """Return the parameter of each number in a saved state. Raise ValueError if it is of other parameters."""
        saved = self._saved_groups(state)
        if saved is None:
            return weights_in_order(self.optimizer, state)
        own = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        by_name = dict(zip(chain(*self._group_names()), own, strict=True))
        return dict(zip(_numbers(state), (by_name[name] for name in chain(*saved)), strict=True))

    def _keep_dtypes(self, state: Mapping[str, Any]) -> None:
        """Restore the saved dtypes of the optimizer's state, which PyTorch casts to the parameter's dtype.

        Skip a parameter whose own dtype differs from the checkpoint's.
        """
        for group, saved in zip(self.optimizer.param_groups, state["param_groups"], strict=True):
            for weight, number, dtype in zip(group["params"], saved["params"], saved.get(DTYPES, ()), strict=False):
                if str(weight.dtype) != dtype:
                    continue
                own = self._states.get(weight, {})
                for name, value in state["state"].get(number, {}).items():
                    if name in own:
                        own[name] = _with_tensors(own[name], value, _in_saved_dtype)

    @property
    def _kind(self) -> str:
        return type(self.optimizer).__name__

    @property
    def _states(self) -> Mapping[torch.Tensor, dict[str, Any]]:
        return self.optimizer.state

    def _taken(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def _give(self, state: Mapping[str, Any]) -> None:
        self.optimizer.load_state_dict(dict(state))

    def _group_names(self) -> list[list[str]]:
        names = {id(weight): plain_name(name) for name, weight in self._module.named_parameters()}
        numbers = count()  # over all groups, so that placeholders are unique
        return [
            [names.get(id(weight), f"#{number}") for weight, number in zip(group["params"], numbers, strict=False)]
            for group in self.optimizer.param_groups
        ]

    def _saved_groups(self, state: Mapping[str, Any]) -> list[list[str]] | None:
        """Return each saved group's names, or None to match by number. Raise ValueError if the names differ."""
        saved, own = _names(state), self._group_names()
        if saved is None:
            return None
        saved_flat = [name for names in saved for name in names]
        own_flat = [name for names in own for name in names]
        pairs = zip(saved_flat, own_flat, strict=False)
        nameless = [name for name in (*saved_flat, *own_flat) if _PLACEHOLDER.fullmatch(name)]
        if list(map(len, saved)) == list(map(len, own)) and all(
            one == other or _PLACEHOLDER.fullmatch(one) or _PLACEHOLDER.fullmatch(other) for one, other in pairs
        ):
            # In the same order, numbers match parameters without a name, too, even if they have a name now.
            return None if nameless else saved
        missing = [name for name in own_flat if name not in saved_flat]
        missing += [name for name in saved_flat if name not in own_flat]
        if not nameless and not missing:
            return saved
        if nameless and all(_PLACEHOLDER.fullmatch(name) for name in missing):
            raise ValueError(
                "parameters outside of the model have no names, and this script gives its optimizer the parameters in "
                "another order than the checkpoint's: give them in that order, or register them in the model"
            )
        raise ValueError(
            f"it trained {len(saved_flat)} parameters and this one trains {len(own_flat)}; not in both: "
            f"{shown_names(missing)}"
        )

    def _sources(self, state: Mapping[str, Any]) -> list[tuple[int, ...]]:
        """Return, for each group, the numbers of the saved groups that its parameters come from."""
        saved = self._saved_groups(state)
        if saved is None:
            return [(number,) for number in range(len(state["param_groups"]))]
        group_of = {name: number for number, names in enumerate(saved) for name in names}
        found = [tuple(sorted({group_of[name] for name in names})) for names in self._group_names()]
        rest = [number for number, names in enumerate(saved) if not names]  # for groups without parameters
        return [sources or ((rest.pop(0),) if rest else (number,)) for number, sources in enumerate(found)]

    def _in_own_order(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state, rearranged to the groups and the order of this optimizer."""
        saved = self._saved_groups(state)
        plain = {name: value for name, value in state.items() if name not in (SCRIPT_OPTIONS, KIND)}
        if saved is None:
            return plain
        names_of_all = [name for names in saved for name in names]
        numbers = _numbers(state)
        number_of = dict(zip(names_of_all, numbers, strict=True))
        dtypes = [dtype for group in state["param_groups"] for dtype in group.get(DTYPES, ())]
        dtype_of = dict(zip(names_of_all, dtypes, strict=False))
        known = set(numbers)
        # An optimizer may have a state beside those of its parameters, such as a counter of all steps.
        moments = {key: value for key, value in state["state"].items() if key not in known}
        groups, number = [], 0
        for sources, names in zip(self._sources(state), self._group_names(), strict=True):
            own_numbers = []
            for name in names:
                if number_of[name] in state["state"]:
                    moments[number] = state["state"][number_of[name]]
                own_numbers.append(number)
                number += 1
            own_dtypes = [dtype_of.get(name, "") for name in names]
            group = {**state["param_groups"][sources[0]], "params": own_numbers, NAMES: names, DTYPES: own_dtypes}
            groups.append(group)
        return {**plain, "state": moments, "param_groups": groups}

    def _compare(self, state: Mapping[str, Any]) -> list[GroupChanges]:
        return compare(state, self.script_options(), names=self._group_names(), sources=self._sources(state))

    def _told(self) -> list[str]:
        return [text for own, each in zip(self.script_options(), self.changes, strict=True) for text in each.told(own)]


def keep_strides(states: Mapping[Any, Any]) -> None:
    """Give each loaded tensor of an optimizer's state the strides of its parameter, in which the optimizer made it.

    A checkpoint's tensors are contiguous, and fused optimizers walk through the memory of parameter and state alike.
    """
    for weight, own in states.items():
        if type(weight) in (torch.Tensor, nn.Parameter):  # the pieces of a DTensor are contiguous
            change = partial(_in_strides_of, weight)
            for name, value in own.items():
                own[name] = _with_tensors(value, value, change)


def weights_in_order(optimizer: Optimizer, state: Mapping[str, Any]) -> dict[int, torch.Tensor]:
    """Return the parameter of each number in a saved state whose parameters are in the optimizer's order."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    return dict(zip(_numbers(state), weights, strict=False))


def _with_tensors(present: Any, saved: Any, change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Any:
    """Return a value of a state. Each tensor that is also in the saved value is changed."""
    if isinstance(present, torch.Tensor) and isinstance(saved, torch.Tensor):
        return change(present, saved)
    if isinstance(present, dict) and isinstance(saved, dict):
        return {key: _with_tensors(each, saved.get(key), change) for key, each in present.items()}
    if type(present) in (list, tuple) and isinstance(saved, list | tuple) and len(present) == len(saved):
        return type(present)(_with_tensors(*pair, change) for pair in zip(present, saved, strict=True))
    return present


def _in_saved_dtype(present: torch.Tensor, saved: torch.Tensor) -> torch.Tensor:
    return present if present.dtype == saved.dtype else saved.to(present.device, copy=True)


def _in_strides_of(weight: torch.Tensor, value: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    is_alike = type(value) is torch.Tensor and value.layout is weight.layout and value.shape == weight.shape
    if not is_alike or value.stride() == torch.empty_like(weight, device="meta").stride():
        return value
    return torch.empty_like(weight, dtype=value.dtype, device=value.device).copy_(value)


def _numbers(state: Mapping[str, Any]) -> list[int]:
    return [number for group in state["param_groups"] for number in group["params"]]


def check_optimizer(optimizer: Optimizer, state: Mapping[str, Any], *, by_name: bool = False) -> None:
    """Raise ValueError if a state has another kind or other parameters, matched by number unless `by_name`."""
    groups, own = state["param_groups"], optimizer.param_groups
    sizes, own_sizes = [len(group["params"]) for group in groups], [len(group["params"]) for group in own]
    if len(sizes) != len(own_sizes) or (sizes != own_sizes and not by_name):
        raise ValueError(f"it has groups of {sizes} parameters, and this run's optimizer has groups of {own_sizes}")
    for saved in groups:
        if missing := sorted(set(optimizer.defaults) - set(saved) - _NOT_OF_THE_KIND - _NEW):
            raise ValueError(
                f"it is the state of another optimizer than this run's {type(optimizer).__name__}: it lacks "
                f"{shown_names(missing)}"
            )
        for name in _OF_THE_KIND & set(saved) & set(optimizer.defaults):
            if saved[name] != optimizer.defaults[name]:
                raise ValueError(
                    f"it is the state of another optimizer than this run's {type(optimizer).__name__}: {name} was "
                    f"{saved[name]}, and is {optimizer.defaults[name]}"
                )
    if by_name:
        return
    for number, weight in weights_in_order(optimizer, state).items():
        for name, value in state["state"].get(number, {}).items():
            if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape != weight.shape:
                raise ValueError(
                    f"parameter {number} has {name} of shape {list(value.shape)}, and this run's is of shape "
                    f"{list(weight.shape)}"
                )


def _names(state: Mapping[str, Any]) -> list[list[str]] | None:
    """Return the parameter names of each saved group, or None if absent."""
    names = [group.get(NAMES) for group in state["param_groups"]]
    if any(each is None for each in names):
        return None
    return [[plain_name(name) for name in each] for each in names]
