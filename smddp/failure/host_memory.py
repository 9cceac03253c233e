"""What this host's kernel says of memory: the processes that it ended for a lack of it, and the size of /dev/shm.

A process that is killed says nothing. The kernel counts each OOM kill, of a cgroup and of the machine, before it sends
the SIGKILL. So counters that were read before and after tell an OOM kill from any other SIGKILL.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path, PurePosixPath

SHARED_MEMORY = "/dev/shm"  # noqa: S108, it is only measured

_NO_MEMORY = "often because the host ran out of memory"
LIKELY_CAUSES = {"SIGKILL": f", {_NO_MEMORY}", "SIGBUS": f", often because {SHARED_MEMORY} is full"}
"""The words that follow ``killed by SIGKILL`` or ``killed by SIGBUS`` if nothing was measured."""
_COUNTERS = ("memory.events", "memory.oom_control")
"""The files with the counter of a cgroup, in versions 2 and 1."""
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_NO_LIMIT = 1 << 60
"""From so many bytes on, a limit of cgroup version 1 means none."""
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_SHARED_MEMORY_IS_FULL = re.compile(r"(?:shared memory|/dev/shm).*No space left on device", re.DOTALL)
"""Matches what PyTorch's data loader and NCCL say of a full /dev/shm."""
_REMEDIES = {
    "SIGKILL": "Use fewer num_workers, smaller batches, or a host with more memory.",
    "SIGBUS": "Use fewer num_workers or smaller batches, or make it larger: docker run --shm-size=8g.",
}


class HostMemory:
    """The kernel's counters of OOM kills at one moment. ``root`` is the directory above ``proc``."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._cgroup = _cgroup(root)
        self._before = self._counts()

    def explain(self, signal_name: str) -> str:
        """Return the words that follow ``killed by SIGKILL`` or ``killed by SIGBUS``; empty for other signals."""
        if signal_name == "SIGKILL":
            return f", {self.oom_kill() or 'by a person or a program: the kernel has counted no OOM kill'}"
        return LIKELY_CAUSES["SIGBUS"] + _size("; it has") if signal_name == "SIGBUS" else ""

    def remedy(self, signal_name: str) -> str:
        """Return what to do if a lack of memory led to the signal; empty if it did not."""
        return "" if signal_name == "SIGKILL" and not self.oom_kill() else _REMEDIES.get(signal_name, "")

    def oom_kill(self) -> str | None:
        """Return how the kernel has ended a process for a lack of memory since; None if it has counted none."""
        (of_cgroup, of_machine), (cgroup_before, machine_before) = self._counts(), self._before
        if of_cgroup is not None and cgroup_before is not None and of_cgroup > cgroup_before:
            limit = self._limit()
            allowed = f": it may use {_mebibytes(limit)}" if limit is not None else ""
            return f"by the kernel, because this host ran out of memory (an OOM kill){allowed}"
        if of_machine is None or machine_before is None:
            return _NO_MEMORY if of_cgroup is None else None
        # The machine's counter alone may be that of a neighbour, in another container.
        return (
            "while the kernel ended a process of this machine for a lack of memory"
            if (of_machine > machine_before)
            else None
        )

    def _counts(self) -> tuple[int | None, int | None]:
        of_cgroup = None if self._cgroup is None else _count(self._cgroup)
        return of_cgroup, _count(self._root / "proc" / "vmstat")

    def _limit(self) -> int | None:
        assert self._cgroup is not None
        for name in _LIMITS:
            with suppress(OSError, ValueError):  # of the other version, or "max"
                limit = int((self._cgroup.parent / name).read_text(encoding="ascii"))
                return None if limit >= _NO_LIMIT else limit
        return None


def describe_full_shared_memory(error: str) -> str | None:
    """Return the size of /dev/shm and the remedy if an error says that it is full; else None."""
    if not _SHARED_MEMORY_IS_FULL.search(error):
        return None
    return (
        f"{SHARED_MEMORY}, through which DataLoader workers and NCCL share memory, is full{_size(': it has')}. "
        + (_REMEDIES["SIGBUS"])
    )


def _size(before: str) -> str:
    try:
        found = os.statvfs(SHARED_MEMORY)
    except OSError:
        return ""
    size, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    return f"{before} {_mebibytes(size)}, now {_mebibytes(free)} of them free"


def _mebibytes(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def _count(file: Path) -> int | None:
    try:
        found = _COUNT.search(file.read_text(encoding="ascii", errors="replace"))
    except OSError:
        return None
    return None if found is None else int(found[1])


def _cgroup(root: Path) -> Path | None:
    """Return the file with the counter of this process's cgroup; None if there is none."""
    for version, mount, top, path in _memory_cgroups(root):
        # In a container without a cgroup namespace the path is the machine's, and the mount shows its end.
        below = PurePosixPath(path).relative_to(top) if PurePosixPath(path).is_relative_to(top) else "."
        for directory in dict.fromkeys((root / mount.lstrip("/") / below, root / mount.lstrip("/"))):
            if _count(directory / _COUNTERS[version]) is not None:
                return directory / _COUNTERS[version]
    return None


def _memory_cgroups(root: Path) -> list[tuple[int, str, str, str]]:
    """Return the mounted hierarchies that may count memory: 0 or 1 for version 2 or 1, mount, its top, own path."""
    try:
        paths = (root / "proc" / "self" / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
        mounts = (root / "proc" / "self" / "mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    own: dict[str, str] = {}
    for line in paths:
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)
    found = []
    for line in mounts:
        before, _, after = line.partition(" - ")
        (_, _, _, top, mount, *_), (kind, _, options, *_) = before.split(), [*after.split(), "", ""]
        if kind == "cgroup2" and "" in own:
            found.append((0, mount, top, own[""]))
        elif kind == "cgroup" and "memory" in options.split(",") and "memory" in own:
            found.append((1, mount, top, own["memory"]))
    return found
