"""A look for a checkpoint that a running training does not mislead: it removes old ones while the new ones come.

A list of checkpoints is old as soon as it is read. All of it may be gone when one looks, and newer ones be there: so
nothing is only said not to be there after two looks that saw the same.
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
class Look(Generic[_Result]):
    """What a look at all checkpoints of a place came to."""

    found: _Result | None
    """What was looked for."""
    passed_over: Mapping[int, str | None]
    """Why each step that was listed is not it; None: it had no manifest when it was looked at."""


def look_until_settled(store: Store, look: Callable[[], Look[_Result]]) -> Look[_Result]:
    """Look for something until it is found, or is not there: until nothing changed between two looks.

    Args:
        store: Where.
        look: Lists the steps, and looks at each.

    Returns:
        The last look.

    Raises:
        CheckpointError: What is there changes all the time, or was removed by somebody.
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
