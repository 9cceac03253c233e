"""The tree of processes below one: the ranks in it, whom a stop concerns, and orphans, whom somebody must reap.

Launchers answer SIGTERM by killing their ranks, 30 s (torchrun) or one second (mpirun) later, and hide them: below a
daemon on another host, below a shell, orphaned. A rank is known by its environment, which its launcher made.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

LAUNCHER_VARIABLES = (
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RANK"),
    ("OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"),
)
"""What torchrun and OpenMPI tell each rank and nobody else; without the first of them, the others are anybody's: a
script may set RANK for its own use."""

JOB_VARIABLES = ("SM_CURRENT_HOST",)
"""What a toolkit tells all processes of a job, and what it does before that, such as pip, not."""

START_SECONDS = 15.0
"""How long after its start a process that handles no SIGTERM yet is spared one: it still imports."""

Marks = frozenset[tuple[bytes, ...]]
"""What launchers made of a process: one mark for each, which no two ranks share."""

_LAUNCHERS = frozenset(
    {"mpirun", "orted", "prted", "smddprun", "ssh", "sshd", "torchrun", "torchrun_driver.py", "mpi_driver.py"}
)
_SHELLS = frozenset({"bash", "dash", "sh", "basic_script_driver.py"})
"""What runs one script, and a stop must pass by: shells, and what SDK V3 starts a script with."""


class Descendants:
    """The processes below one that live at this moment."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._starts: dict[int, int] = {}
        self.parents: dict[int, int] = {}
        """Each process below ``root``, with its parent."""
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
        """Return the processes that a launcher made a rank; of a launcher within a rank, the innermost ones.

        What a rank starts itself, such as a data loader's workers, inherits its mark and is no rank: of all that have
        a mark, the oldest is.
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
        """Return ranks, and what has inherited their marks."""
        own = _marks(self._root)
        return {process for process in self.parents if _marks(process) - own}

    def left_by_ranks(self, own: Collection[int]) -> set[int]:
        """Return what ranks left to the root, and all below it; nothing while a launcher below has a rank.

        Once there were ranks, each child that the root did not start is an orphan of theirs, though it may have emptied
        its environment; but for a launcher's daemon, which its parent left as well.

        Args:
            own: The children that the root has started.
        """
        marked = self.marked()
        children = {process for process, parent in self.parents.items() if parent == self._root} - set(own)
        left = self.at_or_below({each for each in children if each in marked or _names(each).isdisjoint(_LAUNCHERS)})
        return left if marked <= left else set()

    def at_or_below(self, processes: Collection[int]) -> set[int]:
        """Return those of the processes that are below the root, and all below them."""
        wanted = set(processes)
        return {each for each in self.parents if each in wanted or not wanted.isdisjoint(self._ancestors(each))}

    def script(self, program: int) -> set[int]:
        """Return what runs the job where no launcher is, for a ``program`` that may be a toolkit.

        Returns:
            A toolkit's script, or what that runs if it is a shell; nothing as long as there are launchers without
            ranks; ``program`` itself if it never began a job.
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
    """Return the processes below ``root`` that a launcher made a rank."""
    return set(Descendants(root).ranks())


class RankStops:
    """Tells each rank below a process of a stop once: when it has a handler, or has had time to set one.

    Args:
        root: The process.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._told: dict[Marks, int] = {}

    def tell(self, stops: Sequence[int]) -> None:
        """Look once; call it again and again, for ranks that are being started.

        Args:
            stops: The signals so far; of several, a rank is told the last.
        """
        for rank, marks in Descendants(self._root).ranks().items() if stops else ():
            if self._told.get(marks, 0) < len(stops) and (catches(rank, stops[-1]) or _age(rank) > START_SECONDS):
                self._told[marks] = len(stops)
                with suppress(ProcessLookupError):
                    os.kill(rank, stops[-1])


def started(process: int) -> int | None:
    """Return when a process was started, in the kernel's ticks; None if there is none of this number any more."""
    found = _parent_and_start(process)
    return None if found is None else found[1]


def _age(process: int) -> float:
    """Return for how many seconds a process has been there; 0 for one that has ended."""
    ticks, now = started(process), time.clock_gettime(time.CLOCK_BOOTTIME)
    return 0.0 if ticks is None else now - ticks / os.sysconf("SC_CLK_TCK")


def catches(process: int, signum: int) -> bool:
    """Return whether a process has a handler for this signal: what has none yet would be killed by it."""
    for line in _read(process, "status").splitlines():
        if line.startswith(b"SigCgt:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def send_to_those_that_catch(processes: Iterable[int], signum: int) -> None:
    """Signal those of the processes that have a handler for it; the others, which it would kill, hear nothing."""
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
    """Return those of these variables that a process was started with, as NAME=value."""
    prefixes = tuple(f"{name}=".encode() for name in names)
    return tuple(sorted(entry for entry in _read(process, "environ").split(b"\0") if entry.startswith(prefixes)))


def command_line(process: int) -> str:
    """Return the first two words of a process's command line, such as an interpreter and its script."""
    return _read(process, "cmdline").replace(b"\0", b" ", 1).split(b"\0")[0].decode(errors="replace").strip()


def _names(process: int) -> set[str]:
    """Return the program's name, and the script's if that is an interpreter's first word."""
    words = [_read(process, "comm").strip(), *_read(process, "cmdline").split(b"\0")[:2]]
    return {word.decode(errors="replace").rpartition("/")[2] for word in words}


def _parent_and_start(process: int) -> tuple[int, int] | None:
    """Return its parent, and when it was started; None for one that has ended, reaped or not."""
    fields = _read(process, "stat").rpartition(b")")[2].split()  # the name before it may hold anything
    return (int(fields[1]), int(fields[19])) if fields and fields[0] != b"Z" else None


def _read(process: int, what: str) -> bytes:
    """Return a file of /proc; nothing if the process has ended, or is not ours to look into."""
    try:
        with open(f"/proc/{process}/{what}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


def adopt_orphans() -> None:
    """Become the parent of whatever below this process outlives its own; the first process is that already."""
    if os.getpid() == 1:
        return
    import ctypes  # a tenth of a small program's start

    set_child_subreaper = 36  # linux/prctl.h
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def reap_children() -> dict[int, int]:
    """Reap every child that has ended, adopted ones too; return their return codes by process ID, -n for signal n."""
    ended = {}
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended
