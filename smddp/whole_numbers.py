"""Convert whole numbers of any type, such as numpy's, to plain ints, which JSON requires."""

from __future__ import annotations

from contextlib import suppress
from operator import index
from typing import SupportsIndex


def as_whole_number(name: str, value: SupportsIndex) -> int:
    """Return an integer of any type, such as numpy's or a tensor of one; raise ValueError for anything else.

    Refuse a bool, which Python and PyTorch count as 0 or 1.
    """
    is_bool = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "torch.bool"
    with suppress(TypeError):
        if not is_bool:
            return index(value)
    raise ValueError(f"{name} is {value!r:.80}: give a whole number")


def as_whole_numbers(**values: SupportsIndex) -> list[int]:
    """Return the integers by `as_whole_number`, in their order."""
    return [as_whole_number(name, value) for name, value in values.items()]
