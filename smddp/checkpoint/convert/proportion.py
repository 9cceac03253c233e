"""A small file must not become a huge state.

A pickle can say in a few bytes that one number is a tensor of a terabyte (by strides of 0), or that a list holds a list
a million times. That takes no memory until it is copied or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from smddp.errors import CheckpointError

_TIMES = 4
"""As large as the file may the state become, and `_MORE` bytes: expanded masks and views of one weight are usual."""
_MORE = 2**30


def check_proportion(state: Any, size: int, origin: str) -> None:
    """See that a state is not much larger than what it was read from.

    Args:
        state: Nested containers around tensors, numbers and texts.
        size: Bytes of what it was read from.
        origin: What to call it in errors.

    Raises:
        CheckpointError: It is, or it holds itself.
    """
    scale = _Scale()
    try:
        total = scale.weigh(state) + scale.tensors
    except RecursionError as error:
        raise CheckpointError(f"{origin} is nested too deep") from error
    if total > _TIMES * size + _MORE:
        raise CheckpointError(
            f"{origin} would take {total} bytes in memory, and it has {size}: its tensors are expanded, or it holds "
            "the same values many times; save it with contiguous tensors"
        )


class _Scale:
    """Adds up what a state takes when it is written out."""

    def __init__(self) -> None:
        self.tensors = 0
        """Bytes of all tensors, each view of a memory once."""
        self._views: set[tuple[object, ...]] = set()
        self._known: dict[int, int | None] = {}  # None: being weighed

    def weigh(self, value: Any) -> int:
        """Return the bytes that a value takes, at least, each time that it is there, without the tensors."""
        if isinstance(value, torch.Tensor):
            self._add(value)
            return 1
        if isinstance(value, (str, bytes, bytearray)):
            return 1 + len(value)
        if not isinstance(value, (Mapping, list, tuple, set, frozenset)):
            return 1
        if id(value) not in self._known:
            self._known[id(value)] = None
            items = [each for pair in value.items() for each in pair] if isinstance(value, Mapping) else value
            # A module's state_dict has the versions of its layers as an attribute.
            self._known[id(value)] = 1 + sum(map(self.weigh, [*items, *getattr(value, "__dict__", {}).values()]))
        known = self._known[id(value)]
        if known is None:
            raise RecursionError("it holds itself")
        return known

    def _add(self, tensor: torch.Tensor) -> None:
        if tensor.layout is not torch.strided or tensor.is_meta:
            return
        view = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if view not in self._views:
            self._views.add(view)
            self.tensors += tensor.numel() * tensor.itemsize
