"""The process tree below a process: find the ranks, which a stop must signal, and orphans, which must be reaped.

A stop signals the ranks directly: launchers answer SIGTERM by killing their ranks, 30 s (torchrun) or one second
(mpirun) later. A rank may be below a daemon on another host, below a shell, or orphaned. So a rank is recognised by the
environment variables of its launcher.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

LAUNCHER_VARIABLES = (
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RANK"),
    ("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"),
)
"""Variables that torchrun and OpenMPI set for each rank only. The others count only beside the first one: a script may
set RANK for its own use."""

JOB_VARIABLES = ("SM_CURRENT_HOST",)
"""Variables that a toolkit sets for a job's processes, but not for earlier ones, such as pip."""

START_SECONDS = 15.0
"""Seconds after its start during which a process without a SIGTERM handler is not signalled: it is still importing."""

Marks = frozenset[tuple[bytes, ...]]
"""The launcher variables of a process: one unique mark for each launcher."""

_LAUNCHERS = frozenset(
    {"mpirun", "orted", "prted", "smddprun", "ssh", "sshd", "torchrun", "torchrun_driver.py", "mpi_driver.py"}
)
_SHELLS = frozenset({"bash", "dash", "sh", "basic_script_driver.py"})
"""Programs that only run one script, and that a stop does not signal: shells, and SDK V3's driver."""


class Descendants:
    """A snapshot of the processes below `root`."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._starts: dict[int, int] = {}
        self.parents: dict[int, int] = {}
        """The parent of each process below ``root``."""
        children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):  # noqa: PTH208, this must start fast: no pathlib
            if name.isdecimal() and (found := _parent_and_start(int(name))) is not None:
                parent, self._starts[int(name)] = found
                children.setdefault(parent, []).append(int(name))
        waiting = [root]
        while waiting:
            parent = waiting.pop()
            for child in children.get(parent, []):
                self.parents[child] = parent
                waiting.append(child)

    def ranks(self) -> dict[int, Marks]:
        """Return the ranks; if a rank runs a launcher itself, only the inner ranks.

        A rank's children, such as DataLoader workers, inherit its mark. So the oldest process with a mark is the rank.
        """
        own = _marks(self._root)
        marks = {process: _marks(process) - own for process in sorted(self.parents, key=self._age)}
        ranks: dict[tuple[bytes, ...], int] = {}
        for process, found in marks.items():
            for mark in found:
                ranks.setdefault(mark, process)
        outer = {ancestor for rank in ranks.values() for ancestor in self._ancestors(rank)}
        return {process: marks[process] for process in ranks.values() if process not in outer}

    def marked(self) -> set[int]:
        """Return the ranks, and all processes that inherited their marks."""
        own = _marks(self._root)
        return {process for process in self.parents if _marks(process) - own}

    def left_by_ranks(self, own: Collection[int]) -> set[int]:
        """Return the orphans of ranks, and all processes below them; empty while a rank is below a launcher.

        `own` are the children that the root started. Once ranks existed, every other child is their orphan, even with
        an empty environment, except a launcher's daemon, which is orphaned on purpose.
        """
        marked = self.marked()
        children = {process for process, parent in self.parents.items() if parent == self._root} - set(own)
        left = self.at_or_below({each for each in children if each in marked or _names(each).isdisjoint(_LAUNCHERS)})
        return left if marked <= left else set()

    def at_or_below(self, processes: Collection[int]) -> set[int]:
        """Return the given processes below the root, and all processes below them."""
        wanted = set(processes)
        return {each for each in self.parents if each in wanted or not wanted.isdisjoint(self._ancestors(each))}

    def script(self, program: int) -> set[int]:
        """Return the processes of a job without a launcher: `program`, or a toolkit's script below it.

        Shells are replaced by their children. Launchers are left out, so a launcher without ranks yet gives nothing.
        """
        given = [process for process, parent in self.parents.items() if _job(process) not in (_job(parent), ())]
        processes = [process for process in given if _names(process).isdisjoint(_LAUNCHERS)] if given else [program]
        script = set[int]()
        while processes:
            process = processes.pop()
            inner = [child for child, parent in self.parents.items() if parent == process]
            if inner and not _names(process).isdisjoint(_SHELLS):
                processes += [child for child in inner if _names(child).isdisjoint(_LAUNCHERS)]
            else:
                script.add(process)
        return script

    def _age(self, process: int) -> tuple[int, int]:
        return self._starts[process], process

    def _ancestors(self, process: int) -> set[int]:
        ancestors = set[int]()
        while (parent := self.parents.get(process)) is not None:
            ancestors.add(parent)
            process = parent
        return ancestors


def find_ranks(root: int) -> set[int]:
    """Return the ranks below ``root``."""
    return set(Descendants(root).ranks())


class RankStops:
    """Sends a stop's signal once to each rank below `root`: once it has a handler, or after `START_SECONDS`."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._told: dict[Marks, int] = {}

    def tell(self, stops: Sequence[int]) -> None:
        """Send the last of `stops`, the signals so far, to each ready rank. Call it repeatedly: ranks may start."""
        for rank, marks in Descendants(self._root).ranks().items() if stops else ():
            if self._told.get(marks, 0) < len(stops) and (catches(rank, stops[-1]) or age(rank) > START_SECONDS):
                self._told[marks] = len(stops)
                with suppress(ProcessLookupError):
                    os.kill(rank, stops[-1])


def started(process: int) -> int | None:
    """Return a process's start time in kernel ticks; None if it has ended."""
    found = _parent_and_start(process)
    return None if found is None else found[1]


def namespace() -> str:
    """Return the boot of this machine's kernel, and this process's namespace of process IDs."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:  # noqa: PTH123
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return str(uuid.uuid4())  # no other process can look up this one


def state(process: int) -> str:
    """Return a process's state, a letter as in proc(5): R, S, D, T, t, Z; empty if it has ended."""
    fields = _read(process, "stat").rpartition(b")")[2].split()
    return fields[0].decode() if fields else ""


@dataclass(frozen=True, slots=True)
class Thread:
    """What the kernel tells of a thread."""

    state: str
    """A letter as in proc(5)."""
    computed: float
    """Seconds on a core."""
    waited: float
    """Seconds in which it could have computed, and others had the cores; 0 on a kernel that does not count them."""


def threads(root: int) -> dict[int, Thread]:
    """Return the threads of a process and of all below it, by their IDs."""
    found = {}
    for process in (root, *Descendants(root).parents):
        try:
            names = os.listdir(f"/proc/{process}/task")  # noqa: PTH208, as above
        except OSError:
            continue
        for name in names:
            fields = _read(process, f"task/{name}/stat").rpartition(b")")[2].split()
            if fields:
                seconds = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
                computed, waited = scheduled(process, int(name)) or (seconds, 0.0)
                found[int(name)] = Thread(fields[0].decode(), computed, waited)
    return found


def scheduled(process: int, thread: int) -> tuple[float, float] | None:
    """Return the seconds in which a thread computed and in which it waited for a core; None if nobody counts them."""
    nanoseconds = _read(process, f"task/{thread}/schedstat").split()
    return (int(nanoseconds[0]) / 1e9, int(nanoseconds[1]) / 1e9) if nanoseconds else None


def usage() -> tuple[float, int] | None:
    """Return the CPU seconds, and the bytes read and written, of this process and all below it, but not of this thread.

    Return None without /proc.
    """
    own = os.getpid()
    if not _read(own, "stat"):
        return None
    # Both clocks count in microseconds: the difference of a precise clock and one in ticks of 10 ms would jump.
    seconds = time.process_time() - time.thread_time()
    size = _bytes(_read(own, "io")) - _bytes(_read(own, f"task/{threading.get_native_id()}/io"))
    for process in Descendants(own).parents:
        fields = _read(process, "stat").rpartition(b")")[2].split()
        seconds += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        size += _bytes(_read(process, "io"))
    return seconds, size


def _bytes(io: bytes) -> int:
    """Return the bytes read and written, from a file ``io`` of /proc.

    Both those of system calls and those of the disk: a file that is mapped into memory is read without a call.
    """
    counts = dict(line.split(b":") for line in io.splitlines())
    return sum(int(counts.get(name, 0)) for name in (b"rchar", b"wchar", b"read_bytes", b"write_bytes"))


def age(process: int) -> float:
    """Return a process's age in seconds; 0 if it has ended."""
    ticks, now = started(process), time.clock_gettime(time.CLOCK_BOOTTIME)
    return 0.0 if ticks is None else now - ticks / os.sysconf("SC_CLK_TCK")


def catches(process: int, signum: int) -> bool:
    """Return whether a process has a handler for the signal. Without one, the signal would kill it."""
    return _is_in(b"SigCgt", process, signum)


def ignores(process: int, signum: int) -> bool:
    """Return whether a process ignores the signal."""
    return _is_in(b"SigIgn", process, signum)


def _is_in(mask: bytes, process: int, signum: int) -> bool:
    """Return whether one of a process's signal masks in ``/proc`` has the signal."""
    for line in _read(process, "status").splitlines():
        if line.startswith(mask + b":"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def send_to_those_that_catch(processes: Iterable[int], signum: int) -> None:
    """Send a signal to the processes that handle it; skip the others, which it would kill."""
    for process in processes:
        if catches(process, signum):
            with suppress(ProcessLookupError):
                os.kill(process, signum)


def _marks(process: int) -> Marks:
    candidates = (_variables(process, names) for names in LAUNCHER_VARIABLES)
    return frozenset(
        values
        for values, (first, *_) in zip(candidates, LAUNCHER_VARIABLES, strict=True)
        if any(value.startswith(f"{first}=".encode()) for value in values)
    )


def _job(process: int) -> tuple[bytes, ...]:
    return _variables(process, JOB_VARIABLES)


def _variables(process: int, names: Sequence[str]) -> tuple[bytes, ...]:
    """Return the given variables of a process's initial environment, as NAME=value."""
    prefixes = tuple(f"{name}=".encode() for name in names)
    return tuple(sorted(entry for entry in _read(process, "environ").split(b"\0") if entry.startswith(prefixes)))


def command_line(process: int) -> str:
    """Return the first two words of a command line, such as an interpreter and its script; three of ``python -m``."""
    words = _read(process, "cmdline").split(b"\0")
    return b" ".join(words[: 3 if words[1:2] == [b"-m"] else 2]).decode(errors="replace").strip()


def _names(process: int) -> set[str]:
    """Return the names of the program, and of its script if the program is an interpreter."""
    words = [_read(process, "comm").strip(), *_read(process, "cmdline").split(b"\0")[:2]]
    return {word.decode(errors="replace").rpartition("/")[2] for word in words}


def _parent_and_start(process: int) -> tuple[int, int] | None:
    """Return a process's parent and start time; None if it has ended, reaped or not."""
    fields = _read(process, "stat").rpartition(b")")[2].split()  # the name may contain spaces and parentheses
    return (int(fields[1]), int(fields[19])) if fields and fields[0] != b"Z" else None


def _read(process: int, what: str) -> bytes:
    """Return a file of /proc; empty if the process has ended or is not readable."""
    try:
        with open(f"/proc/{process}/{what}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def adopt_orphans() -> None:
    """Become the parent of orphans below this process (child subreaper); PID 1 already is."""
    if os.getpid() == 1:
        return
    import ctypes  # slow to import: a tenth of a small program's start

    set_child_subreaper = 36  # linux/prctl.h
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def reap_children() -> dict[int, int]:
    """Reap all ended children, adopted ones too; return the return codes by process ID, -n for signal n."""
    ended = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended
