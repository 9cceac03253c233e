"""Notes the last collective of the default process group: what it is, and whether it has ended.

PyTorch's hooks tell it, or without hooks NCCL's recorder.

A collective that differs from another rank's of the same number is held before it runs, so that the watchdog finds both
ranks where they wait.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

import torch
import torch.distributed as dist

from smddp.watch import nccl_recorder
from smddp.watch.fingerprints import Fingerprints

_HOOK = 0x5D
_NAMES = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLGATHER_BASE": "all_gather_into_tensor"}
_POINT_TO_POINT = ("SEND", "RECV")
_DTYPES = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
_SHAPED = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER_BASE", "REDUCE_SCATTER_BASE"})
"""Collectives whose input has the same number of elements and the same type on every rank."""
_TYPES = {each: number for number, each in enumerate(sorted(_DTYPES, key=str))}
_HOLD_SECONDS = 0.1


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
        self._reads_recorder = False
        self._recorded: nccl_recorder.Recorded | None = None
        self._fingerprints: Fingerprints | None = None
        # By the operation's number in PyTorch.
        self._is_collective: dict[int, bool] = {}
        self._is_shaped: dict[int, bool] = {}
        self.transfers = 0
        """Sends and receives begun. Two threads may lose one of two, which does not matter: any change is progress."""

    @property
    def count(self) -> int:
        """The number of collectives entered. Read it before `last` and `is_inside`: they tell of the same moment."""
        if self._reads_recorder and (recorded := nccl_recorder.read()) is not None:
            if recorded != self._recorded:
                self._entered = [recorded.number, ""]
            elif recorded.waits and not self._entered[1]:
                self._entered[1] = nccl_recorder.describe(recorded.number)
            self._recorded = recorded
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
        if self._recorded is not None:
            return self._recorded.waits
        issued = self._issued
        if issued[0] != self._entered[0]:
            return in_call
        if issued[1] is not None and issued[1].is_completed():
            issued[1] = None
        return issued[1] is not None

    def begin(self, fingerprints: Fingerprints | None = None) -> bool:
        """Note the default group's collectives from now on; return False if neither hooks nor a recorder tell them.

        With `fingerprints`, a collective that differs from another rank's waits until `release`.
        """
        if not dist.is_initialized():
            return False
        group: Any = dist.group.WORLD
        if not hasattr(group, "register_pre_hook"):
            self._reads_recorder = nccl_recorder.is_on()
            return self._reads_recorder
        group.register_pre_hook(_HOOK, self._enter)
        group.register_post_hook(_HOOK, self._issue)
        self._group, self._fingerprints = group, fingerprints
        return True

    def release(self) -> None:
        """Compare no more, and let a collective that is held run."""
        self._fingerprints = None

    def end(self) -> None:
        """Stop noting, and let go of the last collective's tensors."""
        self.release()
        self._reads_recorder, self._recorded = False, None
        group, self._group = self._group, None
        if group is not None:
            group.unregister_pre_hook(_HOOK)
            group.unregister_post_hook(_HOOK)
        self._entered = [self._entered[0], self.last]
        self._issued = [self._entered[0], None]

    def _enter(self, arguments: Any) -> None:
        operation = int(arguments.name)
        if not self._counts(operation, arguments):
            self.transfers += 1
            return
        number = next(self._numbers)
        self._entered = [number, arguments]
        fingerprints = self._fingerprints
        if fingerprints is not None and fingerprints.differ(number, self._fingerprint(operation, arguments)):
            while self._fingerprints is not None:
                time.sleep(_HOLD_SECONDS)

    def _issue(self, arguments: Any) -> None:
        if self._counts(int(arguments.name), arguments):
            self._issued = [self._entered[0], arguments.work]

    def _counts(self, operation: int, arguments: Any) -> bool:
        if operation not in self._is_collective:
            self._is_collective[operation] = arguments.name.name not in _POINT_TO_POINT
            self._is_shaped[operation] = arguments.name.name in _SHAPED
        return self._is_collective[operation]

    def _fingerprint(self, operation: int, arguments: Any) -> int:
        """Return a number that is the same on all ranks, in every process, if they call the same collective."""
        size = types = 0
        if self._is_shaped[operation]:
            for tensor in arguments.input_tensors:
                size += tensor.numel()
                types += _TYPES[tensor.dtype]
        return hash((operation, size, types))


def _describe(arguments: Any) -> str:
    name: str = arguments.name.name
    tensors = arguments.input_tensors if name in _SHAPED else ()
    shapes = ", ".join(f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in tensors)
    return _NAMES.get(name, name.lower()) + (f" of {shapes}" if shapes else "")
