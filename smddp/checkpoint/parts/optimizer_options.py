"""Compares the options of an optimizer between the checkpoint's script and this one, group by group.

A checkpoint contains the initial options of each group. A checkpoint of an older version contains only those at its
step, of which a schedule may have changed some: there, the initial ones are estimated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smddp.checkpoint.parts.script_options import SCRIPT_OPTIONS, change, copied, same
from smddp.display_text import shown_names

NAMES = "param_names"
"""The key of a group's parameter names in a saved state."""
DTYPES = "param_dtypes"
"""The key of a group's parameter dtypes in a saved state."""
RATE_OPTIONS = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum"})
"""Options of a group from which schedules compute."""
IMPLEMENTATION = {"foreach", "capturable", "differentiable", "fused", "params", NAMES, DTYPES}
"""Keys of a group that do not affect the result of an optimizer step, only its implementation."""
_SCHEDULED = {"momentum", "betas"}
"""Options that a schedule may change besides the learning rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupChanges:
    """How the options of one group of parameters differ between the checkpoint's script and this one."""

    label: str
    """The group in messages, named by its first parameter or its number."""

    sources: tuple[int, ...]
    """The numbers of the saved groups that its parameters come from."""

    begin: dict[str, Any]
    """The initial options in the checkpoint's script."""

    saved: dict[str, Any]
    """The options of the checkpoint to compare with this script's."""

    changed: frozenset[str]
    """The options that this script has changed."""

    unlike: frozenset[str]
    """The options that differ among the saved groups."""

    moves_rates: bool
    """Whether a schedule computes from one of the changed options."""

    @property
    def taken(self) -> frozenset[str]:
        """The options that this script's own replace, under ``on_change="take"``."""
        return frozenset({*self.saved, "lr"}) if self.unlike else self.changed

    def told(self, own: Mapping[str, Any]) -> list[str]:
        """Describe the changes for people. `own` has the initial options of this script."""
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
        """Describe for people the options that differ among the saved groups."""
        return (
            f"the parameters{self.label} come from {len(self.sources)} groups of the checkpoint's script, which differ "
            f"in {shown_names(sorted(self.unlike))}"
        )


def group_options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a group's options, without its parameters."""
    return {name: copied(value) for name, value in group.items() if name not in ("params", NAMES, DTYPES)}


def compare(
    state: Mapping[str, Any],
    own: Sequence[Mapping[str, Any]],
    *,
    names: Sequence[Sequence[str]],
    sources: Sequence[tuple[int, ...]],
) -> list[GroupChanges]:
    """Compare the initial options of the checkpoint's script with this script's, `own`, group by group.

    Each group of this script has the parameters `names`, which come from the saved groups `sources`.
    """
    found, groups = [], state["param_groups"]
    scripts = state.get(SCRIPT_OPTIONS, [None] * len(groups))
    for number, (options, parameters, origins) in enumerate(zip(own, names, sources, strict=True)):
        begins = [scripts[origin] or _approximate(group_options(groups[origin]), options) for origin in origins]
        first = groups[origins[0]]
        saved = _comparable(begins[0], first, options)
        changed = {name for name in saved if not same(saved[name], options[name])}
        if "initial_lr" in saved and "initial_lr" not in changed:
            changed -= {"lr"}  # a schedule computes it, and schedules are compared separately
        unlike = {
            name
            for name in saved
            for origin, begin in zip(origins, begins, strict=True)
            if not same(begin.get(name), begins[0][name]) or not same(groups[origin].get(name), first.get(name))
        }
        found.append(
            GroupChanges(
                label="" if len(groups) == 1 else f" of the group of {parameters[0] if parameters else number}",
                sources=origins,
                begin={name: value for name, value in begins[0].items() if name not in IMPLEMENTATION},
                saved=saved,
                changed=frozenset(changed),
                unlike=frozenset(unlike),
                moves_rates=bool(unlike)
                or any(name in RATE_OPTIONS or not same(first.get(name), saved[name]) for name in changed),
            )
        )
    return found


def _approximate(saved: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Estimate the initial options of a script for a checkpoint of an older version, which lacks them.

    `saved` has the options at the checkpoint's step, and is changed in place. `own` has this script's initial options.
    """
    if "initial_lr" in saved and "initial_lr" in own:
        moved = _SCHEDULED | ({"lr"} if same(saved["initial_lr"], own["initial_lr"]) else set())
        saved |= {name: own[name] for name in moved & set(saved) & set(own)}
    return saved


def _comparable(begin: Mapping[str, Any], saved: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a saved group to compare with this script's initial options, `own`."""
    # The initial options of the checkpoint's script, except those that its schedule changed and no schedule of this
    # script does: these as they were at the checkpoint's step.
    left = {"lr"} if "initial_lr" in begin and "initial_lr" not in own else set()
    left |= _SCHEDULED if "max_momentum" in begin and "max_momentum" not in own else set()
    names = set(begin) & set(own) - IMPLEMENTATION
    return {name: saved[name] if name in left else begin[name] for name in names}
