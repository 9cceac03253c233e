"""Notes the last collective of the default process group, by PyTorch's hooks: what it is, and whether it has ended."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

_HOOK = 0x5D
_NAMES = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLGATHER_BASE": "all_gather_into_tensor"}
_POINT_TO_POINT = ("SEND", "RECV")
_SHAPED = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER_BASE", "REDUCE_SCATTER_BASE"})
"""Collectives whose input has the same shape and type on every rank."""


class CollectiveLog:
    """The collectives that this rank has entered. Sends and receives do not count: not every rank takes part."""

    def __init__(self) -> None:
        # The hooks run in the thread that calls the collective, for DDP's buckets one of autograd's. Each assignment
        # is one reference, so the watchdog's thread reads either the old value or the new one. The hooks keep PyTorch's
        # own objects, and the watchdog's thread reads them: a step pays some 5 µs for each collective.
        self._entered: tuple[int, Any] = (0, None)
        self._issued: tuple[int, Any] = (0, None)
        self._group: Any = None
        self._counts: dict[int, bool] = {}  # whether an operation counts, by its number in PyTorch

    @property
    def count(self) -> int:
        """The number of collectives entered."""
        return self._entered[0]

    @property
    def last(self) -> str:
        """The last collective entered, such as ``all_reduce of float32 [64, 10]``; empty before the first."""
        arguments = self._entered[1]
        if arguments is None:
            return ""
        name: str = arguments.name.name
        tensors = arguments.input_tensors if name in _SHAPED else ()
        shapes = ", ".join(f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in tensors)
        return _NAMES.get(name, name.lower()) + (f" of {shapes}" if shapes else "")

    @property
    def is_inside(self) -> bool:
        """Whether the last collective entered has not ended on this rank."""
        count, arguments = self._issued
        if count != self._entered[0]:
            return True
        return not (arguments is None or arguments.work is None or arguments.work.is_completed())

    def begin(self) -> bool:
        """Note the default group's collectives from now on; return False if this PyTorch has no hooks."""
        if not dist.is_initialized():
            return False
        group: Any = dist.group.WORLD
        if not hasattr(group, "register_pre_hook"):
            return False
        group.register_pre_hook(_HOOK, self._enter)
        group.register_post_hook(_HOOK, self._issue)
        self._group = group
        return True

    def end(self) -> None:
        """Stop noting."""
        group, self._group = self._group, None
        self._issued = (self._entered[0], None)
        if group is not None:
            group.unregister_pre_hook(_HOOK)
            group.unregister_post_hook(_HOOK)

    def _enter(self, arguments: Any) -> None:
        if self._does_count(arguments):
            self._entered = (self._entered[0] + 1, arguments)

    def _issue(self, arguments: Any) -> None:
        if self._does_count(arguments):
            self._issued = (self._entered[0], arguments)

    def _does_count(self, arguments: Any) -> bool:
        number = int(arguments.name)
        if number not in self._counts:
            self._counts[number] = arguments.name.name not in _POINT_TO_POINT
        return self._counts[number]
