"""Finds a checkpoint while a running training adds new checkpoints and removes old ones.

A list of checkpoints is outdated as soon as it is read: when the reader opens one, all of them may be gone, and newer
ones present. So the reader reports "absent" only after two looks with the same result, within `_MOST_LOOKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from smddp.checkpoint.stores.store import Store, step_name
from smddp.errors import CheckpointError

_MOST_LOOKS = 20

_Result = TypeVar("_Result")


@dataclass(kw_only=True, slots=True, frozen=True)
class ScanResult(Generic[_Result]):
    """The result of one look at all checkpoints of a location."""

    found: _Result | None
    """The checkpoint or other result; None if absent."""
    passed_over: Mapping[int, str | None]
    """The reason each listed step was rejected; None if it had no manifest."""


def look_until_settled(store: Store, look: Callable[[], ScanResult[_Result]]) -> ScanResult[_Result]:
    """Repeat `look` until it finds a result or two looks agree, and return the last one.

    Raise CheckpointError if the checkpoints keep changing, or if all that were listed are removed.
    """
    before: Mapping[int, str | None] | None = None
    listed: set[int] = set()
    for _ in range(_MOST_LOOKS):
        last = look()
        passed_over = last.passed_over
        if last.found is not None or (passed_over and None not in passed_over.values()):
            return last
        if passed_over == before and (passed_over or not listed):
            return last
        if passed_over == before:
            break
        before = passed_over
        listed.update(passed_over)
    names = ", ".join(map(step_name, sorted(listed)[-3:]))
    raise CheckpointError(
        f"the checkpoints in {store} ({names}) were removed while they were looked at: whoever saves there keeps too "
        "few for the time that reading one takes, or somebody removes them; try again, and let it keep more, as with "
        "Retention(last=5)"
    )
