"""Reject a small file that expands to a huge state.

A few bytes of a pickle can describe a tensor of a terabyte (with strides of 0), or a list that contains another list a
million times. Such a state takes no memory until it is copied or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from smddp.errors import CheckpointError

_TIMES = 4
"""The state may have `_TIMES` the file's bytes, and `_MORE`: expanded masks and views of one weight are usual."""
_MORE = 2**30


def check_proportion(state: Any, size: int, origin: str) -> None:
    """Raise CheckpointError, naming `origin`, if a state is cyclic or much larger than its file of `size` bytes."""
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
    """Adds up the bytes of a state when it is written."""

    def __init__(self) -> None:
        self.tensors = 0
        """Bytes of all tensors, each view counted once."""
        self._views: set[tuple[object, ...]] = set()
        self._known: dict[int, int | None] = {}  # None: in progress

    def weigh(self, value: Any) -> int:
        """Return the least bytes of a value, without its tensors; a container counts each time it occurs."""
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
            # A module's state_dict has its layers' versions in an attribute.
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
