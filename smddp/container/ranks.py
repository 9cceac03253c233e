"""The ranks among the processes below one: whom a stop concerns, as opposed to what started them.

Launchers answer SIGTERM by killing their ranks, 30 s (torchrun) or one second (mpirun) later, and hide them: below a
daemon on another host, below a shell, orphaned. A rank is known by its environment, which its launcher made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

RANK_VARIABLES = ("RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK")
"""What a launcher tells each rank and no other process: torchrun's, and OpenMPI's."""

JOB_VARIABLES = ("SM_CURRENT_HOST",)
"""What a toolkit tells all processes of a job, and what it does before that, such as pip, not."""

_LAUNCHERS = frozenset(
    {"mpirun", "orted", "prted", "smddprun", "ssh", "sshd", "torchrun", "torchrun_driver.py", "mpi_driver.py"}
)
_SHELLS = frozenset({"bash", "dash", "sh", "basic_script_driver.py"})
"""What runs one script, and a stop must pass by: shells, and what SDK V3 starts a script with."""


def find_ranks(root: int) -> set[int]:
    """The processes below ``root`` that a launcher made a rank; of a launcher within a rank, the innermost ones.

    What a rank starts itself, such as a data loader's workers, inherits its variables and is no rank.
    """
    parents = processes_below(root)
    ranks = _given(parents, RANK_VARIABLES)
    return ranks - {ancestor for rank in ranks for ancestor in _ancestors(rank, parents)}


def find_script(root: int) -> set[int]:
    """What runs the job where no launcher is, for a ``root`` that may be a toolkit.

    Returns:
        A toolkit's script, or what that runs if it is a shell; nothing as long as there are launchers without ranks;
        ``root`` itself if it never began a job.
    """
    parents = processes_below(root)
    given = _given(parents, JOB_VARIABLES)
    processes = [process for process in given if _names(process).isdisjoint(_LAUNCHERS)] if given else [root]
    script = set[int]()
    while processes:
        process = processes.pop()
        inner = [child for child, parent in parents.items() if parent == process]
        if inner and not _names(process).isdisjoint(_SHELLS):
            processes += [child for child in inner if _names(child).isdisjoint(_LAUNCHERS)]
        else:
            script.add(process)
    return script


def processes_below(root: int) -> dict[int, int]:
    """The processes that descend from ``root``, each with its parent."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208, this must start fast: no pathlib
        if name.isdecimal() and (parent := _parent(int(name))) is not None:
            children.setdefault(parent, []).append(int(name))
    below: dict[int, int] = {}
    waiting = [root]
    while waiting:
        parent = waiting.pop()
        for child in children.get(parent, []):
            below[child] = parent
            waiting.append(child)
    return below


def _given(parents: Mapping[int, int], variables: tuple[str, ...]) -> set[int]:
    """The processes that have these variables from the start, and not from their parent."""
    own = {process: _variables(process, variables) for process in {*parents, *parents.values()}}
    return {process for process, parent in parents.items() if own[process] and own[process] != own[parent]}


def _variables(process: int, names: tuple[str, ...]) -> tuple[bytes, ...]:
    """Those of these variables that a process was started with, as NAME=value."""
    prefixes = tuple(f"{name}=".encode() for name in names)
    return tuple(sorted(entry for entry in _read(process, "environ").split(b"\0") if entry.startswith(prefixes)))


def _ancestors(process: int, parents: Mapping[int, int]) -> set[int]:
    ancestors = set[int]()
    while (parent := parents.get(process)) is not None:
        ancestors.add(parent)
        process = parent
    return ancestors


def _names(process: int) -> set[str]:
    """The program's name, and the script's if that is an interpreter's first word."""
    words = [_read(process, "comm").strip(), *_read(process, "cmdline").split(b"\0")[:2]]
    return {word.decode(errors="replace").rpartition("/")[2] for word in words}


def _parent(process: int) -> int | None:
    fields = _read(process, "stat").rpartition(b")")[2].split()  # the name before it may hold anything
    return int(fields[1]) if fields else None


def _read(process: int, what: str) -> bytes:
    """A file of /proc; nothing if the process has ended, or is not ours to look into."""
    try:
        with open(f"/proc/{process}/{what}", "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""
