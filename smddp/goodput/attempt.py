"""The record of one attempt of a run: a small JSON file ``goodput/<time>-<id>.json`` beside the checkpoints.

A record has what rank 0 of the attempt measured. What later attempts repeated, and the time between attempts, is found
by `smddp.goodput.account`, which reads all records of a run.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import pairwise
from typing import Any, Literal, get_args

from smddp.checkpoint.format.manifest import LARGEST_STEP, parse_json
from smddp.checkpoint.stores import Store, StoreError
from smddp.errors import CheckpointError

MEASURED = ("start", "training", "evaluation", "data", "checkpoint", "lost", "hang", "other")
"""The parts that an attempt measures in itself."""
REPEATED = ("training", "evaluation", "data", "checkpoint", "other")
"""The parts that become ``lost`` if their steps are taken again."""
End = Literal["", "finished", "stopped", "failed", "hang"]
"""How an attempt ended; empty while it is under way, and after a kill."""
Loop = Literal["trainer", "script"]
"""Whose loop it was. A script's own does not tell training from evaluation and waits for data: all three are other."""

DIRECTORY = "goodput"
"""The directory of the records, in the location of the checkpoints."""
MOST_MARKS = 64
_LARGEST_RECORD = 2**16
_MOST_RECORDS = 10_000
_MOST_SECONDS = 1e10
_FORMAT = 2
_DIGITS = 3
"""Digits of a record's times: milliseconds."""
_NAME = re.compile(r"\d{8}T\d{6}-[0-9a-f]{12}\.json", re.ASCII)
_ID = re.compile(r"[0-9a-f]{12}", re.ASCII)

Seconds = Mapping[str, float]
"""Seconds of each part in `MEASURED`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """What an attempt had spent when it saved a step."""

    step: int
    seconds: Seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One attempt, up to its last sign of life. Times are seconds since 1970, by the clock of rank 0's host."""

    id: str
    host: str
    world_size: int
    launched: float
    """When the launcher of the ranks began, or rank 0 without one."""
    began: float
    """When the parts of `seconds` begin: rank 0 made its Trainer."""
    seconds: Seconds
    """Seconds of each measured part. They add up to the time from `began` to the last sign of life."""
    resumed: int
    """The step from which the attempt continued."""
    step: int
    """The last step, at the last sign of life."""
    durable: int
    """The newest step that this attempt saved, or resumed from."""
    undone: int = 0
    """Steps that the attempt took, and went back behind to a checkpoint."""
    marks: Sequence[Mark]
    """The start of training and the saved steps, oldest first; some older ones may be left out."""
    pause: float
    """Seconds after which the next sign of life was due."""
    end: End = ""
    loop: Loop = "trainer"

    @property
    def ended(self) -> float:
        """The last sign of life."""
        return self.began + sum(self.seconds.values())

    @property
    def name(self) -> str:
        """The name of the record's file, which sorts by time."""
        began = round(self.began, _DIGITS)  # as the record has it
        return f"{datetime.fromtimestamp(began, timezone.utc):%Y%m%dT%H%M%S}-{self.id}.json"

    def at(self, step: int) -> Seconds:
        """Return what the attempt had spent when it had saved the step.

        Between two marks, in proportion to the steps; before the first one, the first one's.
        """
        marks = [*self.marks, Mark(step=self.step, seconds=self.seconds)]
        after = next((number for number, mark in enumerate(marks) if mark.step >= step), len(marks) - 1)
        first, second = marks[max(after - 1, 0)], marks[after]
        if second.step <= step or after == 0:
            return second.seconds
        share = (step - first.step) / (second.step - first.step)
        return {part: first.seconds[part] + share * (second.seconds[part] - first.seconds[part]) for part in MEASURED}

    def to_json(self) -> bytes:
        """Return the content of the record."""
        content = {
            "format": _FORMAT,
            "id": self.id,
            "host": self.host,
            "world_size": self.world_size,
            "launched": round(self.launched, _DIGITS),
            "began": round(self.began, _DIGITS),
            "end": self.end,
            "loop": self.loop,
            "resumed": self.resumed,
            "step": self.step,
            "durable": self.durable,
            "undone": self.undone,
            "pause": round(self.pause, 3),
            "parts": MEASURED,
            "seconds": _numbers(self.seconds),
            "marks": [[mark.step, *_numbers(mark.seconds)] for mark in self.marks],
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Attempt:
        """Read an untrusted record; raise ValueError with the reason if it is damaged."""
        content = parse_json(data)
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f"it is no record of format {_FORMAT}, which this smddp reads")
        try:
            kinds = content["end"] in get_args(End) and content["loop"] in get_args(Loop)
            if content["parts"] != list(MEASURED) or not kinds:
                raise ValueError("it has other parts, or another end or loop, than a record")
            attempt = cls(
                id=content["id"],
                host=content["host"],
                world_size=_whole(content["world_size"]),
                launched=_number(content["launched"]),
                began=_number(content["began"]),
                seconds=_seconds(content["seconds"]),
                resumed=_whole(content["resumed"]),
                step=_whole(content["step"]),
                durable=_whole(content["durable"]),
                undone=_whole(content["undone"]),
                marks=[Mark(step=_whole(step), seconds=_seconds(seconds)) for step, *seconds in content["marks"]],
                pause=_number(content["pause"]),
                end=content["end"],
                loop=content["loop"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field is missing, or is of another kind: {error}") from error
        if not (isinstance(attempt.id, str) and _ID.fullmatch(attempt.id)) or not _is_host(attempt.host):
            raise ValueError("its id or host is not valid")
        attempt._check_order()
        return attempt

    def _check_order(self) -> None:
        """Raise ValueError unless steps and seconds only grow: the parts of an account are never negative."""
        course = [*self.marks, Mark(step=self.step, seconds=self.seconds)]
        for first, second in pairwise(course):
            if first.step > second.step or any(first.seconds[part] > second.seconds[part] for part in MEASURED):
                raise ValueError("its steps or seconds become less")


def read_attempts(store: Store) -> tuple[list[Attempt], list[str]]:
    """Return the attempts of a run, oldest first, and one line about each record that is damaged, and left out.

    Raise StoreError if the store can't be read.
    """
    names = sorted(store.names_beside(DIRECTORY))
    attempts, problems = list[Attempt](), list[str]()
    for name in names[-_MOST_RECORDS:]:
        if not _NAME.fullmatch(name):
            continue
        try:
            content = store.read_beside(DIRECTORY, name, largest=_LARGEST_RECORD)
            if content is not None:
                attempts.append(Attempt.from_json(content))
        except StoreError:
            raise
        except (ValueError, CheckpointError, OSError) as error:
            problems.append(f"{DIRECTORY}/{name} is damaged, and left out: {error}")
    if len(names) > _MOST_RECORDS:
        problems.append(
            f"{len(names) - _MOST_RECORDS} older records are left out: an account has {_MOST_RECORDS} at most"
        )
    return sorted(attempts, key=lambda attempt: attempt.began), problems


def _numbers(seconds: Seconds) -> list[float]:
    return [round(seconds[part], 3) for part in MEASURED]


def _seconds(values: Any) -> Seconds:
    if not isinstance(values, list) or len(values) != len(MEASURED):
        raise ValueError(f"it does not have {len(MEASURED)} parts")
    return {part: _number(value) for part, value in zip(MEASURED, values, strict=True)}


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value) or not 0 <= value <= _MOST_SECONDS:
        raise ValueError("a time is no number of seconds")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST_STEP:
        raise ValueError("a step or a count is no whole number")
    return int(value)


def _is_host(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 256 and value.isprintable()
