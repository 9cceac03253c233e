"""The account of a run: how it spent its wall time, over all attempts.

Each second of an attempt is in one measured part of its record, and each second between two attempts is a wait or a
restart. So the parts add up to the wall time. Notes on the join:
  1. Attempts are in the order of their beginnings. An attempt that was killed ends at its last sign of life.
  2. Between two attempts, the time until the next launcher begins is ``waiting``; from there on it is ``restart``, like
     the next attempt's own start. After an attempt that finished, nothing waits: that pause is not counted.
  3. An attempt's time after the least step from which a later attempt continued was repeated: it is ``lost``. Without
     a later attempt, a failed attempt's time after its newest durable step is lost. The time that an attempt undid
     itself, when it went back to a checkpoint, is ``lost`` in its record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from smddp.checkpoint.stores import Store
from smddp.display_text import counted
from smddp.goodput.attempt import REPEATED, Attempt, read_attempts

PARTS = ("training", "evaluation", "data", "checkpoint", "start", "lost", "restart", "waiting", "hang", "other")
"""All parts of a run's wall time, in the order in which they are shown."""
_LATE_SECONDS = 30.0
"""Seconds by which a sign of life may be late, before its attempt counts as killed."""
_SKEW_SECONDS = 1.0
_LEAST_SHARE = 0.0005


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptAccount:
    """One attempt's part of the account."""

    attempt: Attempt
    seconds: Mapping[str, float]
    """Seconds by part, with the time since the end of the attempt before."""
    lost_steps: int
    """Steps that a later attempt repeated, or would have to, and those that the attempt itself undid."""
    end: Literal["finished", "stopped", "failed", "hang", "killed", "running"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """How a run spent its wall time."""

    attempts: Sequence[AttemptAccount]
    """Oldest first."""
    problems: Sequence[str] = field(default=())
    """One line about each record that was left out."""

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by part, of all attempts; their sum is `wall_seconds`."""
        return {part: sum(each.seconds[part] for each in self.attempts) for part in PARTS}

    @property
    def wall_seconds(self) -> float:
        """Seconds from the first launch to the last sign of life, without pauses after an attempt that finished."""
        return sum(self.seconds.values())

    @property
    def goodput(self) -> float:
        """The share of ``training`` in the wall time; 0 for a run without time."""
        return self.seconds["training"] / self.wall_seconds if self.wall_seconds else 0.0

    @property
    def most_goodput(self) -> float:
        """The goodput if the scripts' own loops only trained; equal to `goodput` if all loops were Trainers'.

        See `smddp.goodput.attempt.Loop`.
        """
        untold = sum(each.seconds["other"] for each in self.attempts if each.attempt.loop == "script")
        return self.goodput + (untold / self.wall_seconds if untold else 0.0)

    @property
    def shares(self) -> dict[str, float]:
        """The share of the wall time of each part."""
        whole = self.wall_seconds or 1.0
        return {part: seconds / whole for part, seconds in self.seconds.items()}

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics of the run's last line: ``goodput``, and the shares of the other parts, without the smallest."""
        others = {f"goodput_{part}": share for part, share in self.shares.items() if share >= _LEAST_SHARE}
        others.pop("goodput_training", None)
        return {"goodput": self.goodput, "wall_seconds": round(self.wall_seconds, 1), **others}

    @property
    def lost_steps(self) -> int:
        """Lost steps of all attempts."""
        return sum(each.lost_steps for each in self.attempts)

    def to_json(self) -> dict[str, Any]:
        """Return the account as JSON values."""
        return {
            "wall_seconds": round(self.wall_seconds, 3),
            "goodput": round(self.goodput, 6),
            "most_goodput": round(self.most_goodput, 6),
            "seconds": _rounded(self.seconds),
            "lost_steps": self.lost_steps,
            "attempts": [
                {
                    "id": each.attempt.id,
                    "host": each.attempt.host,
                    "world_size": each.attempt.world_size,
                    "began": each.attempt.began,
                    "ended": round(each.attempt.ended, 3),
                    "end": each.end,
                    "resumed": each.attempt.resumed,
                    "step": each.attempt.step,
                    "lost_steps": each.lost_steps,
                    "seconds": _rounded(each.seconds),
                }
                for each in self.attempts
            ],
            "problems": list(self.problems),
        }


def read_account(store: Store) -> Account:
    """Return the account of the run in the store; without a ledger, it has no attempts.

    Raise StoreError if the store can't be read.
    """
    attempts, problems = read_attempts(store)
    return join_attempts(attempts, problems=problems)


def join_attempts(attempts: Sequence[Attempt], *, problems: Sequence[str] = (), now: float | None = None) -> Account:
    """Join the attempts of one run. ``now`` decides which attempt is still running; by default this host's clock."""
    now = time.time() if now is None else now
    ordered = sorted(attempts, key=lambda attempt: attempt.began)
    found, told = list[AttemptAccount](), list(problems)
    before: AttemptAccount | None = None
    saved = _first_savers(ordered)
    last_end = 0.0
    for number, attempt in enumerate(ordered):
        later = [other.resumed for other in ordered[number + 1 :]]
        end = attempt.end or ("killed" if later or not _is_alive(attempt, now) else "running")
        seconds = {part: attempt.seconds.get(part, 0.0) for part in PARTS}
        if saved.get(attempt.resumed, number) > number:
            told.append(
                f"attempt {attempt.id} continued from step {attempt.resumed}, saved only by an attempt that began "
                "later by its clock: the clocks of two hosts differ, so some steps are counted as lost by mistake"
            )
        lost_steps = attempt.undone + _move_lost(attempt, end, later, seconds)
        begins_anew = before is None or before.end == "finished"
        if not begins_anew:
            seconds["restart"], seconds["start"] = seconds["start"], 0.0
        launched = min(attempt.launched, attempt.began)
        if before is not None:
            launched = min(max(launched, last_end), max(attempt.began, last_end))
            seconds["waiting"] = 0.0 if begins_anew else launched - last_end
            if attempt.began < last_end - _SKEW_SECONDS:
                told.append(
                    f"attempt {attempt.id} began {last_end - attempt.began:.0f} s before the end of an earlier one: "
                    "the clocks of two hosts differ, or two attempts ran at once"
                )
        seconds["start" if begins_anew else "restart"] += max(attempt.began - launched, 0.0)
        before = AttemptAccount(attempt=attempt, seconds=seconds, lost_steps=lost_steps, end=end)
        last_end = max(last_end, attempt.ended)
        found.append(before)
    return Account(attempts=found, problems=told)


def shown_losses(account: Account) -> str:
    """Return what interruptions cost in steps: ``3 attempts, 120 steps lost``."""
    repeated = f", {counted(account.lost_steps, 'step')} lost" if account.lost_steps else ""
    return counted(len(account.attempts), "attempt") + repeated


def _move_lost(attempt: Attempt, end: str, later: Sequence[int], seconds: dict[str, float]) -> int:
    """Move the seconds of repeated steps to ``lost``; return the number of steps."""
    if later:
        kept = min(later)
    elif end in ("finished", "running"):
        return 0
    else:
        kept = attempt.durable
    if kept >= attempt.step and end in ("finished", "stopped"):
        return 0  # after its last step it only waited for the save
    spent = attempt.at(kept)
    for part in REPEATED:
        seconds["lost"] += attempt.seconds[part] - spent[part]
        seconds[part] = spent[part]
    return max(attempt.step - max(kept, attempt.resumed), 0)


def _first_savers(attempts: Sequence[Attempt]) -> dict[int, int]:
    """Return the number of the first attempt that saved each step."""
    savers = dict[int, int]()
    for number, attempt in enumerate(attempts):
        for step in (attempt.durable, *(mark.step for mark in attempt.marks)):
            if step > attempt.resumed:
                savers.setdefault(step, number)
    return savers


def _is_alive(attempt: Attempt, now: float) -> bool:
    return now < attempt.ended + 2 * attempt.pause + _LATE_SECONDS


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {part: round(value, 3) for part, value in seconds.items()}
