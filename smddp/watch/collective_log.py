"""Notes the last collective of the default process group, by PyTorch's hooks: what it is, and whether it has ended."""

from __future__ import annotations

import itertools
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
        # The hooks run in the thread that calls the collective, for DDP's buckets one of autograd's. They put PyTorch's
        # own object into a new list each time, and the watchdog's thread replaces it in that list by what it reads. So
        # neither writes over the other, a step pays little, and no tensor is kept for more than a second.
        self._entered: list[Any] = [0, ""]
        self._issued: list[Any] = [0, None]
        self._numbers = itertools.count(1)
        self._group: Any = None
        self._is_collective: dict[int, bool] = {}  # by the operation's number in PyTorch
        self.transfers = 0
        """Sends and receives begun. Two threads may lose one of two, which does not matter: any change is progress."""

    @property
    def count(self) -> int:
        """The number of collectives entered."""
        return int(self._entered[0])

    @property
    def last(self) -> str:
        """The last collective entered, such as ``all_reduce of float32 [64, 10]``; empty before the first."""
        entered = self._entered
        if not isinstance(entered[1], str):
            entered[1] = _describe(entered[1])
        return str(entered[1])

    def is_inside(self, *, in_call: bool) -> bool:
        """Return whether the last collective entered has not ended; `in_call`: PyTorch is on the main thread's stack.

        Without `in_call`, a collective that was entered and not issued has raised.
        """
        issued = self._issued
        if issued[0] != self._entered[0]:
            return in_call
        if issued[1] is not None and issued[1].is_completed():
            issued[1] = None
        return issued[1] is not None

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
        """Stop noting, and let go of the last collective's tensors."""
        group, self._group = self._group, None
        if group is not None:
            group.unregister_pre_hook(_HOOK)
            group.unregister_post_hook(_HOOK)
        self._entered = [self._entered[0], self.last]
        self._issued = [self._entered[0], None]

    def _enter(self, arguments: Any) -> None:
        if self._counts(arguments):
            self._entered = [next(self._numbers), arguments]
        else:
            self.transfers += 1

    def _issue(self, arguments: Any) -> None:
        if self._counts(arguments):
            self._issued = [self._entered[0], arguments.work]

    def _counts(self, arguments: Any) -> bool:
        number = int(arguments.name)
        if number not in self._is_collective:
            self._is_collective[number] = arguments.name.name not in _POINT_TO_POINT
        return self._is_collective[number]


def _describe(arguments: Any) -> str:
    name: str = arguments.name.name
    tensors = arguments.input_tensors if name in _SHAPED else ()
    shapes = ", ".join(f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in tensors)
    return _NAMES.get(name, name.lower()) + (f" of {shapes}" if shapes else "")
