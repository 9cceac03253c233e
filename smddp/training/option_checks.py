"""Whether the Trainer's options are of the kinds that they must be, before the first step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def check_whole_numbers(**numbers: int) -> None:
    """See that numbers count something.

    Raises:
        ValueError: One is no whole number, or less than 1.
    """
    for name, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name}={number!r} must be greater than 0, and a whole number")


def check_kinds(**options: tuple[object, type[Any]]) -> None:
    """See that options are values of smddp's own types.

    Args:
        **options: The option and the type of each.

    Raises:
        TypeError: One is not.
    """
    for name, (value, kind) in options.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name}={value!r} is no {kind.__name__}: give {name}=smddp.{kind.__name__}(...)")


def check_collections(*, trackers: object, state: object) -> None:
    """See that there can be several trackers, and that each part of the state has a name.

    Raises:
        TypeError: They are given in another way.
    """
    if not isinstance(trackers, Sequence):
        raise TypeError(f"trackers={trackers!r}: give a list of trackers, also of one")
    if state is not None and not isinstance(state, Mapping):
        raise TypeError(f'state={state!r}: give each part by its name, such as state={{"average": average}}')
