"""Compares the collectives of a host's ranks before they run, by numbers in shared memory.

The backends do not compare. With gloo, an all_reduce of other shapes ends with a wrong sum on one rank, or aborts
another one, which may be innocent.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_NAME = "smddp-collectives"
_SLOTS = 1024
"""Collectives that a rank may be ahead of another one and still be compared with it."""
_WRITTEN, _GROUPS, _NUMBERS, _FINGERPRINTS = 1 << 39, 0x7FFFFF, 0xFFFF, 0xFFFFFF
"""A slot is one 64-bit word, so a reader sees the old value or the new one. Its bits: 1 marks a used slot, 23 are the
group's, 16 the number's, 24 the fingerprint's. No rank is far enough ahead for the numbers to repeat."""


class Fingerprints:
    """The fingerprints of one rank's collectives, and of those of other ranks on this host."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create(_NAME), "r+b", buffering=0)  # others find it while it is open
        self._file.truncate(8 * _SLOTS)
        self._own = memoryview(mmap.mmap(self._file.fileno(), 8 * _SLOTS)).cast("Q")
        self._others: list[memoryview] = []

    @classmethod
    def create(cls) -> Fingerprints | None:
        """Create this process's fingerprints, which others can find from now on; None if the system has no memfd."""
        return cls() if hasattr(os, "memfd_create") else None

    def find_others(self, pids: Collection[int]) -> None:
        """Find the fingerprints of other processes. A process that may not be read is not compared with."""
        for file in (file for pid in pids for file in _descriptors(pid)):
            with suppress(OSError):  # it has been closed since
                if str(file.readlink()).startswith(f"/memfd:{_NAME} "):
                    self._others.append(_map(file))

    def differ(self, group: int, number: int, fingerprint: int) -> bool:
        """Note this rank's collective of this number in a group; return whether another rank has a different one there.

        Groups share the slots, so a rank may miss a comparison after a thousand collectives of other groups. Order:
        each rank notes its own before it looks at the others'. So of two ranks the later one sees both.
        """
        slot = (group + number) % _SLOTS
        place = _WRITTEN | (group & _GROUPS) << 16 | number & _NUMBERS
        own = self._own[slot] = place << 24 | fingerprint & _FINGERPRINTS
        for other in self._others:  # noqa: SIM110, any() takes a microsecond more
            if (there := other[slot]) != own and there >> 24 == place:
                return True
        return False


def _descriptors(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []


def _map(file: Path) -> memoryview:
    with file.open("rb") as content:
        return memoryview(mmap.mmap(content.fileno(), 8 * _SLOTS, prot=mmap.PROT_READ)).cast("Q")
