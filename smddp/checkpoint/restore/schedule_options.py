"""What two scripts say of a learning rate schedule, compared.

Which entries of a schedule's state are options is not guessed from their names: a checkpoint has those that its script
began with. A checkpoint of an older version has only the state at its step. For PyTorch's own schedules a list names
the entries that their steps change; for other schedules smddp says that it cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from torch.optim.lr_scheduler import LRScheduler

from smddp.checkpoint.restore.script_options import SCRIPT_OPTIONS, change, close, copied, describe_function, same

RATES = frozenset({"base_lrs", "_last_lr"})
"""Entries that follow from the optimizer's options, and are changes only where nothing else has changed."""

_NESTED = "_schedulers"
"""Where PyTorch's schedules of schedules have these, and their states."""
_PROGRESS = frozenset({"last_epoch", "_step_count", "_get_lr_called_within_step", "_is_initial", "verbose"})
"""Entries of every schedule that are no options."""
_MOVED = frozenset({"_last_lr", "T_cur", "T_i", "best", "num_bad_epochs", "cooldown_counter"})
"""Further entries of PyTorch's own schedules that their steps change."""
_DERIVED = {"T_i": "T_0", "best": "mode", "mode_worse": "mode", "_schedule_phases": "total_steps"}
"""Entries that need not be told beside the option that they follow from."""
_FUNCTIONS = frozenset({"lr_lambdas", "_scale_fn_custom"})
"""Entries of PyTorch's own schedules that are functions: never saved, but for the attributes of an object."""
_NO_OPTIONS = frozenset({"step", "optimizer", "_scale_fn_ref", "anneal_func"})
"""Attributes that are no options, though they can be called."""
_PER_GROUP = frozenset({"base_lrs", "_last_lr", "max_lrs", "base_momentums", "max_momentums", "min_lrs", "lr_lambdas"})
"""Entries with one value for each group of parameters."""
_VERSIONS = frozenset({"verbose", "default_min_lr", "anneal_func"})
"""Options that only some versions of PyTorch have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptSchedule:
    """What a script says of a schedule, or of one of the schedules in it."""

    kind: str
    """Its class."""

    options: dict[str, Any]
    """Its state as the script began."""

    functions: dict[str, list[dict[str, Any]]]
    """What can be compared of its functions, by the attribute that has them."""

    def as_state(self) -> dict[str, Any]:
        """Return it as a checkpoint holds it."""
        return {"kind": self.kind, "options": copied(self.options), "functions": copied(self.functions)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """What a saved schedule differs in from this script's."""

    state: dict[str, Any]
    """The saved state, with its groups in this optimizer's order and without what its script says."""

    script: list[ScriptSchedule]
    """What the checkpoint's script says of the schedule, and of each one in it."""

    changed: list[frozenset[str]]
    """The changed options of each."""

    unlike: list[str]
    """Options in which saved groups of parameters differ that are one group now."""

    told: list[str]
    """The changed options, for people."""

    functions: list[str]
    """What is seen to differ in functions, of which a checkpoint has nothing to go on with, for people."""

    unknown: list[str]
    """Entries of which an older checkpoint does not say whether they are options."""

    @property
    def is_changed(self) -> bool:
        """Whether this script's schedule is seen to be another one."""
        return bool(self.told or self.functions)


def with_states(scheduler: Any, state: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield a schedule and each one in it, with its state; the outermost first.

    Raises:
        ValueError: The state is one of more or fewer schedules.
    """
    yield scheduler, state
    schedulers, states = list(getattr(scheduler, _NESTED, ())), state.get(_NESTED, [])
    if len(schedulers) != len(states):
        raise ValueError(
            f"its {type(scheduler).__name__} has {len(states)} schedules in it, and this script's has "
            f"{len(schedulers)}: resume with the schedules that were saved, or start anew in another directory"
        )
    for each, saved in zip(schedulers, states, strict=True):
        yield from with_states(each, saved)


def script_of(scheduler: Any, state: Mapping[str, Any]) -> ScriptSchedule:
    """Return what a script says of a schedule that has not been stepped yet.

    Args:
        scheduler: The schedule; those in it are left out.
        state: Its state.
    """
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
    """Compare a saved schedule with this script's.

    Args:
        scheduler: This script's.
        state: The saved state, with what its script says.
        own: What this script says of the schedule, and of each one in it.
        sources: The saved groups that the parameters of each of the optimizer's groups come from.

    Raises:
        ValueError: It is another kind of schedule, or it is not known which options are by groups.
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
    """Say which options have changed, for people.

    Args:
        script: What the checkpoint's script says of a schedule, and of each one in it.
        own: What this script says of them.
        changed: The options of each to tell of.
    """
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
    """Return what holds of a schedule that goes on with the options of the checkpoint's script."""
    functions = {}
    for name, present in own.functions.items():
        is_saved = all(each["kind"] == "object" for each in present) and _pairs(saved, own, name) is not None
        functions[name] = saved.functions[name] if is_saved else present
    return ScriptSchedule(kind=own.kind, options={**own.options, **saved.options}, functions=functions)


def steps_taken(begin: Mapping[str, Any], state: Mapping[str, Any]) -> int | None:
    """Return how often a schedule was stepped between two of its states, or None if they do not say."""
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
        f"it is that of a {saved}, and this script has a {own}: another schedule cannot go on from it; resume with the "
        "one that was saved, or start anew in another directory"
    )


def _approximate(scheduler: Any, saved: Mapping[str, Any], own: ScriptSchedule, unknown: list[str]) -> ScriptSchedule:
    """Return what a script said of one schedule, where a checkpoint of an older version does not have it.

    Args:
        scheduler: This script's.
        saved: Its state at the checkpoint's step.
        own: What this script says of it.
        unknown: Gets the entries of which it cannot be told.
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
    """Put what a schedule has for each group in the order of this optimizer's groups, in place.

    Returns:
        The entries in which saved groups differ that are one group now.

    Raises:
        ValueError: It is not known which entries are by groups.
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
                    f"this script's groups of parameters are others than the checkpoint's, and {name} of "
                    f"{type(scheduler).__name__} may be in the order of those: give the groups as they were saved"
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
    """Say what is seen to differ in functions: in the attributes of objects, which are saved, and in others."""
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
    """Return what both scripts say of the functions under a name, or None if these are other functions."""
    functions, own_functions = saved.functions.get(name, []), own.functions.get(name, [])
    names, own_names = ([(each["name"], each["kind"]) for each in some] for some in (functions, own_functions))
    return list(zip(functions, own_functions, strict=True)) if names == own_names else None


def _drop_functions(scheduler: Any, state: dict[str, Any], saved: ScriptSchedule, own: ScriptSchedule) -> None:
    """Leave out what is saved of functions that this script does not have."""
    for name in _FUNCTIONS & set(state) if _is_torchs(scheduler) else ():
        if _pairs(saved, own, name) is None:
            state[name] = [None] * len(state[name]) if isinstance(state[name], list) else None
