"""The state of an optimizer, taken back by the names of its parameters, and only by an optimizer that it fits.

PyTorch numbers an optimizer's parameters and groups: a script that lists its layers in another order would give each
the moments and the options of another. And it takes the saved options without a word: a learning rate that the script
changed would not hold.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from smddp.checkpoint.restore.script_options import SCRIPT_OPTIONS, OnChange, change, copied, same
from smddp.job.weight_names import plain_name

logger = logging.getLogger(__name__)

NAMES = "param_names"
"""The key of a group's parameter names in a saved state."""
DTYPES = "param_dtypes"
"""The key of a group's parameter dtypes in a saved state."""
KIND = "kind"
"""The key of the optimizer's class in a saved state."""
RATE_OPTIONS = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"})
"""Options of a group that schedules compute from."""
_IMPLEMENTATION = {"foreach", "capturable", "differentiable", "fused", "params", NAMES, DTYPES}
"""Options of a group that change how an optimizer computes, and not what."""
_NOT_OF_THE_KIND = {*_IMPLEMENTATION, "maximize", "initial_lr"}
"""Options of a group that do not tell one kind of optimizer from another."""
_NEW = {"decoupled_weight_decay"}
"""Options that an older PyTorch did not have."""
_OF_THE_KIND = {"decoupled_weight_decay", "amsgrad", "centered"}
"""Options that make another algorithm (AdamW of Adam), or need a state that the other one has not."""
_SCHEDULED = {"momentum", "betas"}
"""What a schedule may change besides the learning rate."""
_PLACEHOLDER = re.compile(r"#\d+")
"""Stands for the name of a parameter that is none of the module's."""
_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupChanges:
    """How the options of one group of parameters differ between the checkpoint's script and this one."""

    label: str
    """The group in messages: by a parameter of it, or by its number."""

    sources: tuple[int, ...]
    """The saved groups that its parameters come from."""

    begin: dict[str, Any]
    """The options that the checkpoint's script began with."""

    saved: dict[str, Any]
    """Those of them that this script's are compared with."""

    changed: frozenset[str]
    """The options that this script has changed."""

    unlike: frozenset[str]
    """The options in which the saved groups differ from one another."""

    moves_rates: bool
    """Whether a schedule computes from one of the changed options."""

    @property
    def taken(self) -> frozenset[str]:
        """The options that this script's own replace, under ``on_change="take"``."""
        return frozenset({*self.saved, "lr"}) if self.unlike else self.changed

    def told(self, own: Mapping[str, Any]) -> list[str]:
        """Say what has changed, for people.

        Args:
            own: The options that this script began with.
        """
        names = set(self.changed)
        if "initial_lr" in names:
            names -= {"lr"}
        if "max_momentum" in names:
            names -= _SCHEDULED
        changes = [
            change(f"{'lr' if name == 'initial_lr' else name}{self.label}", self.saved[name], own[name])
            for name in sorted(names - self.unlike)
        ]
        return [self.told_unlike(), *changes] if self.unlike else changes

    def told_unlike(self) -> str:
        """Say in what the saved groups differ, for people."""
        return (
            f"the parameters{self.label} come from {len(self.sources)} groups of the checkpoint's script, which differ "
            f"in {some(sorted(self.unlike))}"
        )


class NamedOptimizer:
    """An optimizer as a part of a checkpoint, with the names of its parameters.

    Names are looked up whenever they are needed: a script may replace layers, or add groups of parameters.

    Args:
        optimizer: It may be replaced in place only: its state is read and given through it.
        module: Has the names.
        on_change: What holds where options differ.
        speaks: Whether this rank tells of it in the log.
    """

    def __init__(self, optimizer: Optimizer, module: nn.Module, *, on_change: OnChange, speaks: bool) -> None:
        self.optimizer = optimizer
        self.changes: list[GroupChanges] = []
        """Of each group, as the last state that was checked or loaded has it."""
        self._module = module
        self._on_change = on_change
        self._speaks = speaks
        self._script: list[dict[str, Any]] = []
        self._script = self.script_options()

    def note_added_groups(self) -> None:
        """Remember the options of groups that were added, to be called before a schedule moves them."""
        if len(self.optimizer.param_groups) != len(self._script):
            self.script_options()

    def script_options(self) -> list[dict[str, Any]]:
        """Return the options that the script gave each group, before any schedule moved them."""
        groups = self.optimizer.param_groups
        added = [group_options(group) for group in groups[len(self._script) :]]
        self._script = [*self._script[: len(groups)], *added]
        return self._script

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, with ``param_names`` in each group, and the script's own options."""
        state = self._taken()
        groups = self.optimizer.param_groups
        for group, own, names in zip(state["param_groups"], groups, self._group_names(), strict=True):
            group[NAMES], group[DTYPES] = names, [str(weight.dtype) for weight in own["params"]]
        return {**state, KIND: self._kind, SCRIPT_OPTIONS: copied(self.script_options())}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """See that the state fits; nothing is changed.

        Raises:
            ValueError: It is one of another optimizer, or of other parameters, or options differ and may not.
        """
        if (saved := state.get(KIND, self._kind)) != self._kind:
            raise ValueError(
                f"it is one of another kind than this run's {self._kind}: {saved}; train with that, or start anew"
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
        """Take the state back, each parameter its own."""
        optimizer = self.optimizer
        own = self.script_options()
        self.changes = self._compare(state)
        told = self._told()
        have_names = [NAMES in group for group in optimizer.param_groups]
        ordered = self._in_own_order(state)
        self._give(ordered)
        self._keep_dtypes(ordered)
        for group, has_names in zip(optimizer.param_groups, have_names, strict=True):
            group.pop(DTYPES, None)
            if not has_names:
                group.pop(NAMES, None)
        if self._on_change == "take":
            for group, script, each in zip(optimizer.param_groups, own, self.changes, strict=True):
                group.update({name: copied(script[name]) for name in each.taken})
                for name in RATE_OPTIONS & set(group) - set(script):  # of a schedule that this script does not have
                    del group[name]
        else:  # what holds now is what a later script is compared with
            self._script = [
                {name: value for name, value in script.items() if name not in RATE_OPTIONS} | each.begin
                for script, each in zip(own, self.changes, strict=True)
            ]
        if told and self._speaks:
            holds = "this script's" if self._on_change == "take" else "the checkpoint's"
            logger.warning("the optimizer goes on with %s options: %s", holds, "; ".join(told))

    def _keep_dtypes(self, state: Mapping[str, Any]) -> None:
        """Give the state of each parameter the dtypes that it was saved with: PyTorch casts it to the parameter's.

        A parameter that this script has in another dtype than the checkpoint's is left to PyTorch.
        """
        for group, saved in zip(self.optimizer.param_groups, state["param_groups"], strict=True):
            for weight, number, dtype in zip(group["params"], saved["params"], saved.get(DTYPES, ()), strict=False):
                if str(weight.dtype) != dtype:
                    continue
                own = self._states.get(weight, {})
                for name, value in state["state"].get(number, {}).items():
                    present = own.get(name)
                    if not isinstance(value, torch.Tensor) or not isinstance(present, torch.Tensor):
                        continue
                    if present.dtype != value.dtype:
                        own[name] = value.to(present.device, copy=True)

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
        numbers = count()  # over all groups, so that no two parameters without a name have one
        return [
            [names.get(id(weight), f"#{number}") for weight, number in zip(group["params"], numbers, strict=False)]
            for group in self.optimizer.param_groups
        ]

    def _saved_groups(self, state: Mapping[str, Any]) -> list[list[str]] | None:
        """Return the names of each saved group, or None if parameters are to be found by their numbers.

        Raises:
            ValueError: The names are those of other parameters.
        """
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
            # In the same order numbers find the nameless, also those that have a name by now.
            return None if nameless else saved
        missing = [name for name in own_flat if name not in saved_flat]
        missing += [name for name in saved_flat if name not in own_flat]
        if not nameless and not missing:
            return saved
        if nameless and all(_PLACEHOLDER.fullmatch(name) for name in missing):
            raise ValueError(
                "parameters that are none of the model's have no names, and this script gives its optimizer parameters "
                "in another order than the checkpoint's: give the groups in that order, or make them the model's"
            )
        raise ValueError(
            f"it trained {len(saved_flat)} parameters and this one trains {len(own_flat)}; not in both: {some(missing)}"
        )

    def _sources(self, state: Mapping[str, Any]) -> list[tuple[int, ...]]:
        """Return the numbers of the saved groups that each group's parameters come from."""
        saved = self._saved_groups(state)
        if saved is None:
            return [(number,) for number in range(len(state["param_groups"]))]
        group_of = {name: number for number, names in enumerate(saved) for name in names}
        found = [tuple(sorted({group_of[name] for name in names})) for names in self._group_names()]
        rest = [number for number, names in enumerate(saved) if not names]  # for groups without parameters
        return [sources or ((rest.pop(0),) if rest else (number,)) for number, sources in enumerate(found)]

    def _in_own_order(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state with its parameters in the order and the groups of this optimizer."""
        saved = self._saved_groups(state)
        plain = {name: value for name, value in state.items() if name not in (SCRIPT_OPTIONS, KIND)}
        if saved is None:
            return plain
        names_of_all = [name for names in saved for name in names]
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        number_of = dict(zip(names_of_all, numbers, strict=True))
        dtypes = [dtype for group in state["param_groups"] for dtype in group.get(DTYPES, ())]
        dtype_of = dict(zip(names_of_all, dtypes, strict=False))
        moments, groups, number = {}, [], 0
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
        """Compare the options that both scripts began with, group by group."""
        found, groups = [], state["param_groups"]
        scripts = state.get(SCRIPT_OPTIONS, [None] * len(groups))
        own_options, own_names = self.script_options(), self._group_names()
        for number, (sources, own, names) in enumerate(zip(self._sources(state), own_options, own_names, strict=True)):
            begins = [scripts[source] or _approximate(group_options(groups[source]), own) for source in sources]
            saved = _comparable(begins[0], groups[sources[0]], own)
            changed = {name for name in saved if not same(saved[name], own[name])}
            if "initial_lr" in saved and "initial_lr" not in changed:
                changed -= {"lr"}  # a schedule has made it, which is compared itself
            unlike = {
                name
                for name in saved
                for source, begin in zip(sources, begins, strict=True)
                if not same(begin.get(name), begins[0][name])
                or not same(groups[source].get(name), groups[sources[0]].get(name))
            }
            found.append(
                GroupChanges(
                    label="" if len(groups) == 1 else f" of the group of {names[0] if names else number}",
                    sources=sources,
                    begin={name: value for name, value in begins[0].items() if name not in _IMPLEMENTATION},
                    saved=saved,
                    changed=frozenset(changed),
                    unlike=frozenset(unlike),
                    moves_rates=bool(unlike)
                    or any(
                        name in RATE_OPTIONS or not same(groups[sources[0]].get(name), saved[name]) for name in changed
                    ),
                )
            )
        return found

    def _told(self) -> list[str]:
        return [text for own, each in zip(self.script_options(), self.changes, strict=True) for text in each.told(own)]


def group_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a group's options, without its parameters."""
    return {name: copied(value) for name, value in group.items() if name not in ("params", NAMES, DTYPES)}


def check_optimizer(optimizer: Optimizer, state: Mapping[str, Any], *, by_name: bool = False) -> None:
    """See that a state can be one of this optimizer.

    Args:
        optimizer: This run's.
        state: The saved one.
        by_name: Whether parameters are found by their names; else by their numbers.

    Raises:
        ValueError: It is one of another kind, or of other parameters.
    """
    groups, own = state["param_groups"], optimizer.param_groups
    sizes, own_sizes = [len(group["params"]) for group in groups], [len(group["params"]) for group in own]
    if len(sizes) != len(own_sizes) or (sizes != own_sizes and not by_name):
        raise ValueError(f"it has groups of {sizes} parameters, and this run's optimizer has groups of {own_sizes}")
    for saved in groups:
        if missing := sorted(set(optimizer.defaults) - set(saved) - _NOT_OF_THE_KIND - _NEW):
            raise ValueError(
                f"it is one of another kind than this run's {type(optimizer).__name__}: it has no {some(missing)}"
            )
        for name in _OF_THE_KIND & set(saved) & set(optimizer.defaults):
            if saved[name] != optimizer.defaults[name]:
                raise ValueError(
                    f"it is one of another kind than this run's {type(optimizer).__name__}: {name} was {saved[name]}, "
                    f"and is {optimizer.defaults[name]}"
                )
    if by_name:
        return
    weights = [weight for group in own for weight in group["params"]]
    numbers = [number for group in groups for number in group["params"]]
    for number, weight in zip(numbers, weights, strict=True):
        for name, value in state["state"].get(number, {}).items():
            if isinstance(value, torch.Tensor) and value.dim() > 0 and value.shape != weight.shape:
                raise ValueError(
                    f"parameter {number} has {name} of shape {list(value.shape)}, and this run's is of shape "
                    f"{list(weight.shape)}"
                )


def _names(state: Mapping[str, Any]) -> list[list[str]] | None:
    """Return the names of each group's parameters, or None if they were not saved."""
    names = [group.get(NAMES) for group in state["param_groups"]]
    if any(each is None for each in names):
        return None
    return [[plain_name(name) for name in each] for each in names]


def _approximate(saved: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a script began with, where a checkpoint of an older version does not have them.

    Args:
        saved: The options at the checkpoint's step, changed in place.
        own: The options that this script began with.
    """
    if "initial_lr" in saved and "initial_lr" in own:
        moved = _SCHEDULED | ({"lr"} if same(saved["initial_lr"], own["initial_lr"]) else set())
        saved |= {name: own[name] for name in moved & set(saved) & set(own)}
    return saved


def _comparable(begin: Mapping[str, Any], saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to compare with this script's: what a schedule moved that it does not have, as it was saved.

    Args:
        begin: The options that the checkpoint's script began with.
        saved: The group at the checkpoint's step.
        own: The options that this script began with.
    """
    left = {"lr"} if "initial_lr" in begin and "initial_lr" not in own else set()
    left |= _SCHEDULED if "max_momentum" in begin and "max_momentum" not in own else set()
    names = set(begin) & set(own) - _IMPLEMENTATION
    return {name: saved[name] if name in left else begin[name] for name in names}


def some(names: list[str]) -> str:
    """Return the first few names, and how many there are besides, for people."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
