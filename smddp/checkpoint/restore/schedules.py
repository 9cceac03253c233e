"""The state of learning rate schedules, with their options kept, taken or refused as an optimizer's are.

PyTorch saves a schedule's options with its progress, and takes both back without a word: a script that trains twice as
long would go on with the half schedule.

1. What has not changed is loaded as it was saved, to the bit.
2. ``"take"`` steps this script's schedules anew, as often as the checkpoint's were: their learning rates are those of a
   run that had these options from its start. All schedules of an optimizer go together, as most of them compute from
   the learning rate that the others left.
3. That is tried while the checkpoint is checked, before anything is loaded, and undone until then.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, OneCycleLR, ReduceLROnPlateau

from smddp.checkpoint.restore.optimizers import RATE_OPTIONS, NamedOptimizer, group_options
from smddp.checkpoint.restore.schedule_options import (
    RATES,
    Differences,
    compare,
    kept,
    script_of,
    steps_taken,
    told,
    with_states,
)
from smddp.checkpoint.restore.script_options import SCRIPT_OPTIONS, OnChange, copied, same

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Replay:
    """What this script's schedules come to at the checkpoint's step."""

    groups: list[dict[str, Any] | None]
    """The options that they move, of each group; None for a group that goes on as it was saved."""

    states: list[dict[str, Any]]
    """The state of each schedule."""


class OptimizerSchedules:
    """The schedules of one optimizer, which change its learning rates together.

    Args:
        optimizer: Its part of the checkpoint, which is checked and loaded before its schedules.
        on_change: What holds where options differ.
        speaks: Whether this rank tells of it in the log.
    """

    def __init__(self, optimizer: NamedOptimizer, *, on_change: OnChange, speaks: bool) -> None:
        self.optimizer = optimizer
        self.on_change = on_change
        self.speaks = speaks
        self._schedules: list[Schedule] = []
        self._replay: _Replay | None = None

    def part(self, scheduler: LRScheduler) -> Schedule:
        """Return a schedule of this optimizer as a part of a checkpoint."""
        self._schedules.append(Schedule(scheduler, self))
        return self._schedules[-1]

    def check(self, schedule: Schedule) -> None:
        """Find what this script's options come to, once the last schedule is checked.

        Raises:
            ValueError: It is not known, or an error.
        """
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
                f"the learning rates that {kinds} would have come to with this script's options are not known: only "
                "schedules that were stepped alike, and without a metric, can be stepped anew; resume with the options "
                "that were saved, or with on_change='keep'"
            )
        self._replay = self._stepped(count, kinds, affected)

    def load(self, schedule: Schedule) -> dict[str, Any] | None:
        """Return a schedule's state with this script's options, or None if it goes on as it was saved."""
        if self._replay is None:
            return None
        if schedule is self._schedules[-1]:  # the optimizer was loaded before
            for group, options in zip(self.optimizer.optimizer.param_groups, self._replay.groups, strict=True):
                group.update(options or {})
        return self._replay.states[self._schedules.index(schedule)]

    def _stepped(self, count: int, kinds: str, affected: list[bool]) -> _Replay:
        """Step this script's schedules from their begin, and put everything back."""
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
                warnings.simplefilter("ignore")  # that the optimizer has taken no steps
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
    """A schedule as a part of a checkpoint, with what its script says of it; made by `OptimizerSchedules`."""

    def __init__(self, scheduler: LRScheduler, together: OptimizerSchedules) -> None:
        self.scheduler = scheduler
        self._together = together
        self._begin = copied(scheduler.state_dict())
        self._script = [script_of(each, state) for each, state in with_states(scheduler, self._begin)]
        self._differences: Differences | None = None

    @property
    def differences(self) -> Differences:
        """What the state that was checked differs in."""
        assert self._differences is not None, "check_state_dict comes before load_state_dict"
        return self._differences

    def steps_taken(self) -> int | None:
        """Return how often the checkpoint's schedule was stepped, or None if it is not known."""
        return steps_taken(self._begin, self.differences.state)

    def begin_anew(self) -> None:
        """Go back to where this script's schedule began."""
        self.scheduler.load_state_dict(copied(self._begin))

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule's state, and what its script says of it."""
        return {**self.scheduler.state_dict(), SCRIPT_OPTIONS: [each.as_state() for each in self._script]}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """See that the state fits, and that options that differ may; nothing is changed.

        Raises:
            ValueError: It is one of another kind of schedule, or options differ and may not.
        """
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
        """Take the progress of the state that was checked, with the options that hold."""
        found = self.differences
        if self._together.on_change == "take":
            self.scheduler.load_state_dict(copied(self._together.load(self) or self._with_own_options(found)))
        else:
            self.scheduler.load_state_dict(copied(found.state))
            self._script = list(map(kept, found.script, self._script))  # a later script is compared with what holds now
        if self._together.speaks:
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
                    f"script's at {scheduler.total_steps}: kept, it would fail on the way there; resume with "
                    "on_change='take', which takes this script's options, or with the total_steps that was saved"
                )

    def _with_own_options(self, found: Differences) -> dict[str, Any]:
        """Return the saved state; with this script's options, if the schedule waits for a metric.

        Raises:
            ValueError: The progress was made with an option that was changed.
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
            holds = "this script's" if takes else "the checkpoint's"
            logger.warning("the schedule goes on with %s options: %s", holds, "; ".join(texts))
        if found.functions and not takes:
            logger.warning(
                "the schedule goes on with this script's functions, as a checkpoint has none: %s",
                "; ".join(found.functions),
            )
        if found.unknown:
            logger.warning(
                "the checkpoint does not say whether the script has changed %s of %s: what was saved holds",
                *(", ".join(found.unknown), type(self.scheduler).__name__),
            )


def _moved(options: dict[str, Any], begin: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group that its schedules move, or compute from."""
    names = RATE_OPTIONS | ({"momentum", "betas"} if "max_momentum" in options else set())
    return {name: value for name, value in options.items() if name in names or not same(value, begin.get(name))}
