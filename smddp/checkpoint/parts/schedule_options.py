"""Compares the options of a learning rate schedule between the checkpoint's script and this one.

A checkpoint contains the initial options of its schedules. A checkpoint of an older version contains only the state at
its step: there, a list names the entries that steps of PyTorch's own schedules change. For other schedules, smddp
reports that it does not know which entries are options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from smddp.checkpoint.parts.script_options import SCRIPT_OPTIONS, change, close, copied, describe_function, same

RATES = frozenset({"base_lrs", "_last_lr"})
"""Entries that follow from the optimizer's options. They count as changes only if nothing else has changed."""

_NESTED = "_schedulers"
"""The attribute of PyTorch's SequentialLR and ChainedScheduler for inner schedules, and its key in their states."""
_PROGRESS = frozenset({"last_epoch", "_step_count", "_get_lr_called_within_step", "_is_initial", "verbose"})
"""Entries of every schedule that are not options."""
_MOVED = frozenset({"_last_lr", "T_cur", "T_i", "best", "num_bad_epochs", "cooldown_counter"})
"""Other entries of PyTorch's own schedules that their steps change."""
_DERIVED = {"T_i": "T_0", "best": "mode", "mode_worse": "mode", "_schedule_phases": "total_steps"}
"""Entries that follow from an option, by that option: messages name only the option."""
_FUNCTIONS = frozenset({"lr_lambdas", "_scale_fn_custom"})
"""Entries of PyTorch's own schedules that are functions. Only the attributes of callable objects are saved."""
_NO_OPTIONS = frozenset({"step", "optimizer", "_scale_fn_ref", "anneal_func"})
"""Callable attributes that are not options."""
_PER_GROUP = frozenset({"base_lrs", "_last_lr", "max_lrs", "base_momentums", "max_momentums", "min_lrs", "lr_lambdas"})
"""Entries with one value per parameter group."""
_VERSIONS = frozenset({"verbose", "default_min_lr", "anneal_func"})
"""Options that only some versions of PyTorch have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptSchedule:
    """The initial options of a schedule in a script. An inner schedule has its own."""

    kind: str
    """The name of its class."""

    options: dict[str, Any]
    """Its state when the script began, without progress and functions."""

    functions: dict[str, list[dict[str, Any]]]
    """The descriptions of its functions by `describe_function`, by attribute."""

    def as_state(self) -> dict[str, Any]:
        """Return the form saved in a checkpoint."""
        return {"kind": self.kind, "options": copied(self.options), "functions": copied(self.functions)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """The differences between a saved schedule and this script's."""

    state: dict[str, Any]
    """The saved state, in this optimizer's group order, without `SCRIPT_OPTIONS`."""

    script: list[ScriptSchedule]
    """The options in the checkpoint's script, of the schedule and of each inner schedule."""

    changed: list[frozenset[str]]
    """The changed options of each schedule in `script`."""

    unlike: list[str]
    """Options that differ between saved parameter groups that are one group now."""

    told: list[str]
    """The changed options, for people."""

    functions: list[str]
    """The visible differences in functions, for people. A checkpoint cannot restore functions."""

    unknown: list[str]
    """Entries of an older checkpoint that may or may not be options."""

    @property
    def is_changed(self) -> bool:
        """Whether options or functions differ visibly."""
        return bool(self.told or self.functions)


def with_states(scheduler: Any, state: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield a schedule and its inner schedules with states, outermost first. Raise ValueError if counts differ."""
    yield scheduler, state
    schedulers, states = list(getattr(scheduler, _NESTED, ())), state.get(_NESTED, [])
    if len(schedulers) != len(states):
        raise ValueError(
            f"its {type(scheduler).__name__} has {len(states)} inner schedules, and this script's has "
            f"{len(schedulers)}: resume with the schedules that were saved, or start anew in another directory"
        )
    for each, saved in zip(schedulers, states, strict=True):
        yield from with_states(each, saved)


def script_of(scheduler: Any, state: Mapping[str, Any]) -> ScriptSchedule:
    """Return the options of a schedule that has not been stepped yet, without its inner schedules."""
    functions = {}
    for name, value in vars(scheduler).items():
        values = value if isinstance(value, list | tuple) else [value]
        if name not in _NO_OPTIONS and values and all(map(callable, values)):
            functions[name] = [describe_function(each) for each in values]
    left_out = {*_PROGRESS, *_FUNCTIONS, *functions, *_NO_OPTIONS, _NESTED}
    options = {name: copied(value) for name, value in state.items() if name not in left_out}
    return ScriptSchedule(kind=type(scheduler).__name__, options=options, functions=functions)


def compare(
    scheduler: Any, state: Mapping[str, Any], own: Sequence[ScriptSchedule], sources: Sequence[tuple[int, ...]]
) -> Differences:
    """Compare a saved schedule with this script's, `own`. `sources` has the saved groups of each present group.

    Raise ValueError if it is another kind of schedule, or if entries may be per group in an unknown order.
    """
    plain = copied({name: value for name, value in state.items() if name != SCRIPT_OPTIONS})
    nodes = list(with_states(scheduler, plain))
    unknown: list[str] = []
    if SCRIPT_OPTIONS in state:
        script = [ScriptSchedule(**each) for each in copied(state[SCRIPT_OPTIONS])]
    else:
        pairs = zip(nodes, own, strict=True)
        script = [_approximate(each, saved, says, unknown) for (each, saved), says in pairs]
    if [each.kind for each in script] != [each.kind for each in own]:
        raise _of_another_kind(_kinds(script), _kinds(own))
    unlike: set[str] = set()
    for (each, saved), says in zip(nodes, script, strict=True):
        for values in (saved, says.options, says.functions):
            unlike |= _reorder(each, values, sources)
    both = list(zip(script, own, strict=True))
    for (each, saved), (says, own_says) in zip(nodes, both, strict=True):
        _drop_functions(each, saved, says, own_says)
    changed = list(starmap(_changed, both))
    objects: list[str] = []
    functions: list[str] = []
    for each, (says, own_says) in zip((scheduler for scheduler, _ in nodes), both, strict=True):
        _compare_functions(each, says, own_says, objects=objects, functions=functions)
    return Differences(
        state=plain,
        script=script,
        changed=changed,
        unlike=sorted(unlike),
        told=told(script, own, [names - RATES for names in changed]) + list(dict.fromkeys(objects)),
        functions=list(dict.fromkeys(functions)),
        unknown=unknown,
    )


def told(
    script: Sequence[ScriptSchedule], own: Sequence[ScriptSchedule], changed: Sequence[frozenset[str]]
) -> list[str]:
    """Describe the changed options of a schedule and its inner schedules, for people."""
    texts = []
    for saved, present, names in zip(script, own, changed, strict=True):
        kind = present.kind if present is own[0] else f"{present.kind} in {own[0].kind}"
        texts += [
            change(f"{name.strip('_')} of {kind}", saved.options[name], present.options[name])
            for name in sorted(names)
            if _DERIVED.get(name) not in names
        ]
    return texts


def kept(saved: ScriptSchedule, own: ScriptSchedule) -> ScriptSchedule:
    """Return the checkpoint's options of a schedule, and the script's where the checkpoint lacks one."""
    functions = {}
    for name, present in own.functions.items():
        is_saved = all(each["kind"] == "object" for each in present) and _pairs(saved, own, name) is not None
        functions[name] = saved.functions[name] if is_saved else present
    return ScriptSchedule(kind=own.kind, options={**own.options, **saved.options}, functions=functions)


def steps_taken(begin: Mapping[str, Any], state: Mapping[str, Any]) -> int | None:
    """Return the number of steps between two states of a schedule, or None if unknown."""
    for name in ("last_epoch", "_step_count"):
        if type(begin.get(name)) is int and type(state.get(name)) is int:
            return int(state[name] - begin[name])
    return steps_taken(begin[_NESTED][0], state[_NESTED][0]) if begin.get(_NESTED) else None


def _is_torchs(scheduler: Any) -> bool:
    return type(scheduler).__module__ == LRScheduler.__module__


def _kinds(script: Sequence[ScriptSchedule]) -> str:
    inner = ", ".join(each.kind for each in script[1:])
    return f"{script[0].kind} of {inner}" if inner else script[0].kind


def _of_another_kind(saved: str, own: str) -> ValueError:
    return ValueError(
        f"it is the state of a {saved}, and this script has a {own}, which cannot resume from it; resume with a "
        "schedule of the saved kind, or start anew in another directory"
    )


def _approximate(scheduler: Any, saved: Mapping[str, Any], own: ScriptSchedule, unknown: list[str]) -> ScriptSchedule:
    """Estimate the initial options of a schedule for a checkpoint of an older version, which lacks them.

    Add entries to `unknown` if they could be either options or state.
    """
    options = {name: copied(value) for name, value in saved.items() if name in own.options}
    if _is_torchs(scheduler):
        names, own_names = (
            {name for name in each if not name.startswith("_")} - _PROGRESS - _FUNCTIONS - _VERSIONS - RATES
            for each in (saved, own.options)
        )
        if names != own_names:
            raise _of_another_kind(f"schedule with {', '.join(sorted(names))}", own.kind)
        moved = set(_MOVED)
    else:
        moved = set(options) - {"base_lrs"}
        unknown += [name for name in sorted(moved - _MOVED) if not same(options[name], own.options[name])]
    options |= {name: copied(own.options[name]) for name in moved & set(options)}
    functions = copied(own.functions)
    for name in _FUNCTIONS & set(functions) & set(saved):
        values = saved[name] if isinstance(saved[name], list) else [saved[name]]
        for described, value in zip(functions[name], values, strict=False):
            if isinstance(value, dict) and described["kind"] == "object":
                described["values"] |= {key: each for key, each in value.items() if key in described["values"]}
    return ScriptSchedule(kind=own.kind, options=options, functions=functions)


def _reorder(scheduler: Any, values: dict[str, Any], sources: Sequence[tuple[int, ...]]) -> set[str]:
    """Reorder per-group entries in place, and return those that differ between saved groups that are one group now.

    Raise ValueError if an entry of an unknown schedule may be per group.
    """
    unlike = set()
    if list(sources) != [(number,) for number in range(len(sources))]:
        for name, value in values.items():
            if name == _NESTED or not isinstance(value, list | tuple) or len(value) != len(sources):
                continue
            if name in _PER_GROUP:
                if any(not same(value[number], value[each[0]]) for each in sources for number in each):
                    unlike.add(name)
                values[name] = type(value)(value[each[0]] for each in sources)
            elif not _is_torchs(scheduler) and not all(same(each, value[0]) for each in value):
                raise ValueError(
                    f"this script's parameter groups differ from the checkpoint's, and {name} of "
                    f"{type(scheduler).__name__} may be in the checkpoint's order: give the groups as they were saved"
                )
    return unlike


def _changed(saved: ScriptSchedule, own: ScriptSchedule) -> frozenset[str]:
    return frozenset(
        name
        for name in set(saved.options) & set(own.options)
        if not (close if name in RATES else same)(saved.options[name], own.options[name])
    )


def _compare_functions(
    scheduler: Any, saved: ScriptSchedule, own: ScriptSchedule, *, objects: list[str], functions: list[str]
) -> None:
    """Append the differences in functions: to `objects` for attributes that PyTorch saves, else to `functions`."""
    for name in sorted({*saved.functions, *own.functions}):
        pairs = _pairs(saved, own, name)
        if pairs is None:
            shown = (
                ", ".join(dict.fromkeys(each["name"] for each in says.functions.get(name, []))) or None
                for says in (saved, own)
            )
            functions.append(change(f"{name.strip('_')} of {own.kind}", *shown))
            continue
        for one, other in pairs:
            values, own_values = one["values"], other["values"]
            texts = [
                change(f"{key} of {other['name']}", values.get(key), own_values.get(key))
                for key in sorted({*values, *own_values})
                if not same(values.get(key), own_values.get(key))
            ]
            is_saved = other["kind"] == "object" and name in _FUNCTIONS and _is_torchs(scheduler)
            (objects if is_saved else functions).extend(texts)


def _pairs(saved: ScriptSchedule, own: ScriptSchedule, name: str) -> list[tuple[dict[str, Any], dict[str, Any]]] | None:
    """Return pairs of descriptions of the functions under a name, or None if the functions differ."""
    functions, own_functions = saved.functions.get(name, []), own.functions.get(name, [])
    names, own_names = ([(each["name"], each["kind"]) for each in some] for some in (functions, own_functions))
    return list(zip(functions, own_functions, strict=True)) if names == own_names else None


def _drop_functions(scheduler: Any, state: dict[str, Any], saved: ScriptSchedule, own: ScriptSchedule) -> None:
    """Remove the saved attributes of functions that this script does not have, in place."""
    for name in _FUNCTIONS & set(state) if _is_torchs(scheduler) else ():
        if _pairs(saved, own, name) is None:
            state[name] = [None] * len(state[name]) if isinstance(state[name], list) else None
