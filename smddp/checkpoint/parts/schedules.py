"""Loads learning rate schedules, and keeps, takes or refuses changed options, as for an optimizer.

PyTorch saves a schedule's options with its progress, and loads both silently: a script that now trains twice as long
would continue with a schedule of half the length.

1. A schedule without changes is loaded bit for bit.
2. ``"take"`` steps this script's schedules from the beginning, as often as the checkpoint's: the learning rates
   equal a run's that always had these options. All schedules of an optimizer step together, as most of them compute
   from the current learning rate.
3. These steps run in the check, before anything is loaded. They are undone at once, and `load` uses the result.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from smddp.checkpoint.parts.optimizer_options import RATE_OPTIONS, group_options
from smddp.checkpoint.parts.optimizers import NamedOptimizer
from smddp.checkpoint.parts.schedule_options import (
    RATES,
    Differences,
    compare,
    kept,
    script_of,
    steps_taken,
    told,
    with_states,
)
from smddp.checkpoint.parts.script_options import SCRIPT_OPTIONS, TAKE_REMEDY, OnChange, copied, same

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Replay:
    """The result of this script's schedules at the checkpoint's step."""

    groups: list[dict[str, Any] | None]
    """The options of each group that schedules change; None for a group that keeps the saved options."""

    states: list[dict[str, Any]]
    """The state of each schedule."""


class OptimizerSchedules:
    """The schedules of one optimizer, which change its learning rates together. It logs if `logs`.

    The optimizer is checked and loaded first, then its schedules in the order of the `part` calls.
    """

    def __init__(self, optimizer: NamedOptimizer, *, on_change: OnChange, logs: bool) -> None:
        self.optimizer = optimizer
        self.on_change = on_change
        self.logs = logs
        self._schedules: list[Schedule] = []
        self._replay: _Replay | None = None

    def part(self, scheduler: LRScheduler) -> Schedule:
        """Return a schedule of this optimizer as a part of a checkpoint."""
        self._schedules.append(Schedule(scheduler, self))
        return self._schedules[-1]

    def check(self, schedule: Schedule) -> None:
        """Step this script's schedules, once the last one is checked. Raise ValueError if they cannot be."""
        if schedule is not self._schedules[-1]:
            return
        self._replay = None
        is_changed = any(each.differences.is_changed for each in self._schedules)
        affected = [is_changed or each.moves_rates for each in self.optimizer.changes]
        by_metric = [isinstance(each.scheduler, ReduceLROnPlateau) for each in self._schedules]
        if not any(affected) or all(by_metric):
            return
        kinds = ", ".join(type(each.scheduler).__name__ for each in self._schedules)
        counts = {each.steps_taken() for each in self._schedules}
        count = counts.pop()
        if any(by_metric) or counts or count is None or count < 0:
            raise ValueError(
                f"the present learning rates of {kinds} by this script's options are unknown: only "
                "schedules that were stepped alike, and without a metric, can be stepped anew; resume with the options "
                "that were saved, or with on_change='keep'"
            )
        self._replay = self._stepped(count, kinds, affected)

    def load(self, schedule: Schedule) -> dict[str, Any] | None:
        """Return a schedule's state with this script's options, or None to load the saved state."""
        if self._replay is None:
            return None
        if schedule is self._schedules[-1]:  # the optimizer is already loaded
            for group, options in zip(self.optimizer.optimizer.param_groups, self._replay.groups, strict=True):
                group.update(options or {})
        return self._replay.states[self._schedules.index(schedule)]

    def _stepped(self, count: int, kinds: str, affected: list[bool]) -> _Replay:
        """Step this script's schedules from the beginning, and restore optimizer and schedules afterwards."""
        groups, schedulers = self.optimizer.optimizer.param_groups, [each.scheduler for each in self._schedules]
        script = self.optimizer.script_options()
        before = [dict(group) for group in groups]
        states = [copied(each.state_dict()) for each in schedulers]
        step = 0
        try:
            for group, options in zip(groups, script, strict=True):
                group.update(copied(options))
            for each in self._schedules:
                each.begin_anew()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the warning that the optimizer took no steps
                while step < count:
                    step += 1
                    for scheduler in schedulers:
                        scheduler.step()
            moved = [_moved(group_options(group), options) for group, options in zip(groups, script, strict=True)]
            return _Replay(
                groups=[options if is_so else None for options, is_so in zip(moved, affected, strict=True)],
                states=[copied(each.state_dict()) for each in schedulers],
            )
        except Exception as error:
            raise ValueError(
                f"this script's {kinds} cannot take step {step} of the {count} that the checkpoint's took "
                f"({type(error).__name__}: {error}): give options with which it can, or resume with on_change='keep'"
            ) from error
        finally:
            for group, options in zip(groups, before, strict=True):
                group.clear()
                group.update(options)
            for scheduler, state in zip(schedulers, states, strict=True):
                scheduler.load_state_dict(state)


class Schedule:
    """A schedule as a part of a checkpoint, with its initial options. `OptimizerSchedules.part` makes it."""

    def __init__(self, scheduler: LRScheduler, together: OptimizerSchedules) -> None:
        self.scheduler = scheduler
        self._together = together
        self._begin = copied(scheduler.state_dict())
        self._script = [script_of(each, state) for each, state in with_states(scheduler, self._begin)]
        self._differences: Differences | None = None

    @property
    def differences(self) -> Differences:
        """The differences found by `check_state_dict`."""
        assert self._differences is not None, "check_state_dict comes before load_state_dict"
        return self._differences

    def steps_taken(self) -> int | None:
        """Return the number of steps of the checkpoint's schedule, or None if unknown."""
        return steps_taken(self._begin, self.differences.state)

    def begin_anew(self) -> None:
        """Reset the schedule to its state at the beginning of this script."""
        self.scheduler.load_state_dict(copied(self._begin))

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule's state, with its initial options."""
        return {**self.scheduler.state_dict(), SCRIPT_OPTIONS: [each.as_state() for each in self._script]}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError if the kind differs, or options differ that may not. Do not change the schedule."""
        found = self._compare(state)
        self._differences = found
        on_change = self._together.on_change
        if on_change == "refuse" and found.is_changed:
            raise ValueError(f"{'; '.join(found.told + found.functions)}: on_change='refuse' allows no change")
        if on_change == "keep":
            self._check_that_it_can_be_kept(found)
        if on_change == "take":
            self._with_own_options(found)
            self._together.check(self)

    def load_state_dict(self, _state: Mapping[str, Any]) -> None:
        """Load the checked state, with the options that `on_change` selects."""
        found = self.differences
        if self._together.on_change == "take":
            self.scheduler.load_state_dict(copied(self._together.load(self) or self._with_own_options(found)))
        else:
            self.scheduler.load_state_dict(copied(found.state))
            self._script = list(map(kept, found.script, self._script))  # a later script is compared with these
        if self._together.logs:
            self._tell(found)

    def _compare(self, state: Mapping[str, Any]) -> Differences:
        changes = self._together.optimizer.changes
        found = compare(self.scheduler, state, self._script, [each.sources for each in changes])
        texts = found.told + [f"groups that differ in {name.strip('_')} have become one" for name in found.unlike]
        if not (texts or found.functions or any(each.moves_rates for each in changes)):
            texts = told(found.script, self._script, found.changed)  # only the rates differ
        return replace(found, told=texts)

    def _check_that_it_can_be_kept(self, found: Differences) -> None:
        if found.unlike:
            raise ValueError(
                f"this script has made one group of several, whose {', '.join(found.unlike)} differ: group the "
                "parameters as they were saved, or resume with on_change='take', which takes this script's options"
            )
        for scheduler, saved in with_states(self.scheduler, found.state):
            if isinstance(scheduler, OneCycleLR) and saved["total_steps"] < scheduler.total_steps:
                raise ValueError(
                    f"the checkpoint's {type(scheduler).__name__} ends at total_steps={saved['total_steps']}, and this "
                    f"script's at {scheduler.total_steps}: if kept, it fails before that end; resume with "
                    "on_change='take', which takes this script's options, or with the total_steps that was saved"
                )

    def _with_own_options(self, found: Differences) -> dict[str, Any]:
        """Return the saved state; for ReduceLROnPlateau, with this script's options.

        Raise ValueError if the progress depends on a changed option, as `best` depends on `mode`.
        """
        state = dict(found.state)
        if isinstance(self.scheduler, ReduceLROnPlateau):
            for name in found.changed[0] - RATES:
                if not same(state[name], found.script[0].options[name]):
                    raise ValueError(
                        f"{'; '.join(found.told)}: {name} was found with the saved options; resume with these, or with "
                        "on_change='keep'"
                    )
                state[name] = self._begin[name]
        return state

    def _tell(self, found: Differences) -> None:
        takes = self._together.on_change == "take"
        texts = found.told + found.functions if takes else found.told
        if texts:
            holds, remedy = ("this script's", "") if takes else ("the checkpoint's", TAKE_REMEDY)
            logger.warning("the schedule resumes with %s options: %s%s", holds, "; ".join(texts), remedy)
        if found.functions and not takes:
            logger.warning(
                "the schedule resumes with this script's functions, as a checkpoint has none: %s",
                "; ".join(found.functions),
            )
        if found.unknown:
            logger.warning(
                "the checkpoint does not say whether the script has changed %s of %s: what was saved holds",
                ", ".join(found.unknown),
                type(self.scheduler).__name__,
            )


def _moved(options: dict[str, Any], begin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group that its schedules change or compute from."""
    names = RATE_OPTIONS | ({"momentum", "betas"} if "max_momentum" in options else set())
    return {name: value for name, value in options.items() if name in names or not same(value, begin.get(name))}
