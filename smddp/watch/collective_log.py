"""Notes the last collective of each process group: what it is, and whether it has ended.

PyTorch's hooks tell it, or without hooks NCCL's recorder, for the default group alone.

A collective that differs from another rank's of the same number is held before it runs, so that the watchdog finds both
ranks where they wait.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from smddp.watch import nccl_recorder
from smddp.watch.fingerprints import Fingerprints

_HOOK = 0x5D
_REGISTER = "_register_process_group"
"""The function that PyTorch calls for each new group before anybody can use it; it has no public one."""
_NAMES = {"ALLREDUCE": "all_reduce", "ALLGATHER": "all_gather", "ALLGATHER_BASE": "all_gather_into_tensor"}
_POINT_TO_POINT = ("SEND", "RECV")
_DTYPES = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
_SHAPED = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER_BASE", "REDUCE_SCATTER_BASE"})
"""Collectives whose input has the same number of elements and the same type on every rank."""
_TYPES = {each: number for number, each in enumerate(sorted(_DTYPES, key=str))}
_HOLD_SECONDS = 0.1
_DIGEST_BITS = (6, 10, 14, 18)
"""A group's digest is kept at the newest number that is a multiple of 2 to each of these powers: two ranks that are
less than so many collectives apart have one of them in common, unless they pass a multiple."""
_LEAST_DIGEST = (1 << _DIGEST_BITS[0]) - 1
_MOST_RANKS = 8
"""Ranks of a group that are named one by one."""
_UNNAMED = ("", "undefined")


class CollectiveLog:
    """The collectives that this rank has entered, by group. Sends and receives do not count: not every rank takes part.

    A group is noted from its creation on, or from `begin` if it is older, and until the script destroys it. It has one
    key on all its ranks, empty for the default group.
    """

    def __init__(self) -> None:
        # Replaced under the lock, never changed: the watchdog's thread reads it without.
        self._groups: tuple[_Group, ...] = ()
        self._adding = threading.Lock()
        self.newest: _Group | None = None
        """The group that has entered a collective last."""
        self._reads_recorder = False
        self._recorded: nccl_recorder.Recorded | None = None
        self._description = ""
        self.fingerprints: Fingerprints | None = None
        """What collectives are compared with; None once they are not."""
        self._end_registration: Callable[[], None] | None = None
        self.transfers = 0
        """Sends and receives begun. Two threads may lose one of two, which does not matter: any change is progress."""

    def entered(self) -> Mapping[str, int]:
        """Return the number of collectives entered, by the key of each group. Call it before `last`."""
        if self._reads_recorder and (recorded := nccl_recorder.read()) is not None:
            if recorded != self._recorded:
                self._description = ""
            elif recorded.waits and not self._description:
                self._description = nccl_recorder.describe(recorded.number)
            self._recorded = recorded
        if self._recorded is not None:
            return {"": self._recorded.number}
        return {each.key: each.number for each in self._groups if each.is_alive}

    def digests(self) -> Mapping[str, Mapping[int, int]]:
        """Return by the key of each group digests of all its collectives up to some numbers."""
        return {each.key: each.digests for each in self._groups if each.is_alive and each.digests}

    def last(self, *, in_call: bool) -> tuple[str, int, str, bool]:
        """Return group, number and name of the last collective, and whether it has not ended; without one, of none.

        The name is such as ``all_reduce of float32 [64, 10]``. Of several that have not ended, return the newest one.
        `in_call`: PyTorch is on the main thread's stack. Without it, one that was entered and not issued has raised.
        """
        if self._recorded is not None:
            return "", self._recorded.number, self._description, self._recorded.waits
        inside = [each for each in self._groups if each.is_inside(in_call=in_call)]
        newest = self.newest
        group = newest if newest in inside or not inside else inside[-1]
        return ("", 0, "", False) if group is None else (group.key, group.number, group.describe(), bool(inside))

    def is_inside(self, *, in_call: bool) -> bool:
        """Return whether a collective has not ended; see `last`."""
        return self.last(in_call=in_call)[3]

    def begin(self, fingerprints: Fingerprints | None = None) -> bool:
        """Note the collectives of all groups from now on; return False if neither hooks nor a recorder tell them.

        With `fingerprints`, a collective that differs from another rank's waits until `release`.
        """
        if not dist.is_initialized():
            return False
        if not hasattr(dist.group.WORLD, "register_pre_hook"):
            self._reads_recorder = nccl_recorder.is_on()
            return self._reads_recorder
        self.fingerprints = fingerprints
        for group in list(distributed_c10d._world.pg_map):  # noqa: SLF001 - torch has no other list of all groups
            self._add(group)
        self._end_registration = _call_for_new_groups(self._add)
        return True

    def release(self) -> None:
        """Compare no more, and let a collective that is held run."""
        self.fingerprints = None

    def end(self) -> None:
        """Stop noting, and let go of the last collectives' tensors."""
        self.release()
        self._reads_recorder, self._recorded = False, None
        if self._end_registration is not None:
            self._end_registration()
            self._end_registration = None
        for group in self._groups:
            group.end()

    def _add(self, group: Any) -> None:
        # Only the thread that makes a group adds its hooks, before anybody uses it: PyTorch does not lock them.
        with self._adding:
            self._groups = (*(each for each in self._groups if each.is_alive), _Group(group, self))


class _Group:
    """The collectives of one process group."""

    def __init__(self, group: Any, log: CollectiveLog) -> None:
        # The hooks run in the thread that calls the collective, for DDP's buckets one of autograd's. They put PyTorch's
        # own object into a new list each time, and the watchdog's thread replaces it in that list by what it reads. So
        # neither writes over the other, a step pays little, and no tensor is kept for more than a second.
        self._entered: list[Any] = [0, ""]
        self._issued: list[Any] = [0, None]
        self._numbers = itertools.count(1)
        self._log = log
        self._group = weakref.ref(group)  # the script may destroy it
        self._is_named = self._is_held = False
        self._key, self._tag, self._place = "", 0, ""
        self._digest = 0
        self.digests: Mapping[int, int] = {}
        """Digests of all collectives up to some numbers; replaced, never changed."""
        group.register_pre_hook(_HOOK, self._enter)
        group.register_post_hook(_HOOK, self._issue)

    @property
    def is_alive(self) -> bool:
        return self._group() is not None

    @property
    def key(self) -> str:
        if not self._is_named:
            self._name()
        return self._key

    @property
    def number(self) -> int:
        return int(self._entered[0])

    def describe(self) -> str:
        """Return the last collective entered, without its tensors from now on; empty before the first."""
        entered = self._entered
        if not isinstance(entered[1], str):
            entered[1] = _describe(entered[1]) + self._place
        return str(entered[1])

    def is_inside(self, *, in_call: bool) -> bool:
        if self._is_held:
            return True
        issued = self._issued
        if issued[0] != self._entered[0]:
            return in_call
        if issued[1] is not None and issued[1].is_completed():
            issued[1] = None
        return issued[1] is not None

    def end(self) -> None:
        if (group := self._group()) is not None:
            group.unregister_pre_hook(_HOOK)
            group.unregister_post_hook(_HOOK)
        self._entered = [self.number, self.describe()]
        self._issued = [self.number, None]

    def _enter(self, arguments: Any) -> None:
        operation, log = int(arguments.name), self._log
        if not _counts(operation, arguments):
            log.transfers += 1
            return
        number = next(self._numbers)
        self._entered = [number, arguments]
        log.newest = self
        if not self._is_named:
            self._name()
        fingerprint = _fingerprint(operation, arguments)
        self._digest = hash((self._digest, fingerprint))
        if not number & _LEAST_DIGEST:
            self._keep_digest(number)
        fingerprints = log.fingerprints if self._is_named else None
        if fingerprints is not None and fingerprints.differ(self._tag, number, fingerprint):
            self._is_held = True  # also in another thread than the main one
            while log.fingerprints is not None:
                time.sleep(_HOLD_SECONDS)
            self._is_held = False

    def _issue(self, arguments: Any) -> None:
        if _counts(int(arguments.name), arguments):
            self._issued = [self._entered[0], arguments.work]

    def _keep_digest(self, number: int) -> None:
        newest = {number >> bits << bits for bits in _DIGEST_BITS}
        self.digests = {each: known for each, known in self.digests.items() if each in newest} | {number: self._digest}

    def _name(self) -> None:
        """Take the group's name and ranks, unknown until PyTorch has registered the group."""
        group = self._group()
        if group is None:
            return
        if group is not dist.group.WORLD:
            try:
                ranks = dist.get_process_group_ranks(group)
            except KeyError:
                return
            of = ", ".join(map(str, ranks)) if len(ranks) <= _MOST_RANKS else f"{ranks[0]} to {ranks[-1]}"
            name = "" if group.group_desc in _UNNAMED else f" {group.group_desc}"
            self._place = f" in the group{name} of ranks {of}"
            self._tag = zlib.crc32(f"{group.group_name} {ranks}".encode())
            self._key = f"{self._tag:08x}"
        self._is_named = True


def _call_for_new_groups(call: Callable[[Any], None]) -> Callable[[], None]:
    """Call this with each new group, from its maker's thread; return a function that ends it."""
    register: Any = getattr(distributed_c10d, _REGISTER, None)
    if register is None:
        return lambda: None

    def register_and_call(name: str, group: Any) -> None:
        register(name, group)
        call(group)

    setattr(distributed_c10d, _REGISTER, register_and_call)
    return lambda: setattr(distributed_c10d, _REGISTER, register)


# By the operation's number in PyTorch: its name takes three microseconds each time.
_is_collective: dict[int, bool] = {}
_is_shaped: dict[int, bool] = {}


def _counts(operation: int, arguments: Any) -> bool:
    if operation not in _is_collective:
        name = arguments.name.name
        _is_shaped[operation] = name in _SHAPED
        _is_collective[operation] = name not in _POINT_TO_POINT
    return _is_collective[operation]


def _fingerprint(operation: int, arguments: Any) -> int:
    """Return a number that is the same on all ranks, in every process, if they call the same collective."""
    size = types = 0
    if _is_shaped[operation]:
        for tensor in arguments.input_tensors:
            size += tensor.numel()
            types += _TYPES[tensor.dtype]
    return hash((operation, size, types))


def _describe(arguments: Any) -> str:
    name: str = arguments.name.name
    tensors = arguments.input_tensors if name in _SHAPED else ()
    shapes = ", ".join(f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in tensors)
    return _NAMES.get(name, name.lower()) + (f" of {shapes}" if shapes else "")
