"""Which processes of this machine run, what they started, and where they listen."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether it runs: one that has ended may still be listed, if nobody asked for its exit code."""
    return bool(arguments_of(pid))


def processes_with(argument: str) -> list[int]:
    """The processes that have some text in their command line, such as a random one that a test put there."""
    return [pid for pid in _all() if any(argument in word for word in arguments_of(pid))]


def running(root: int, program: str) -> list[int]:
    """A process, and all that it started, that run a program, by the end of its path."""
    return [pid for pid in processes_of(root) if any(name.endswith(program) for name in arguments_of(pid)[:1])]


def arguments_of(pid: int) -> list[str]:
    """Its program's name and arguments; none if it has ended."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return []
    return line.removesuffix("\0").split("\0") if line else []


def processes_of(root: int) -> list[int]:
    """A process and all that it started."""
    parents = {}
    for pid in _all():
        try:
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def listening(processes: Iterable[int]) -> set[tuple[str, int]]:
    """The addresses and ports of this machine at which processes listen for TCP connections."""
    here = Path("/proc/self/ns/net").readlink()
    inodes = set()
    for process in processes:
        if Path(f"/proc/{process}/ns/net").readlink() == here:
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                try:
                    inodes.add(str(descriptor.readlink()))
                except OSError:  # it is closed
                    continue
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                address, _, port = fields[1].partition(":")
                found.add((".".join(str(byte) for byte in reversed(bytes.fromhex(address))), int(port, 16)))
    return found


def _all() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]
