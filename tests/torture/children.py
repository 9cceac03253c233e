"""Children that are forked from a process that has imported everything: a life begins within milliseconds.

The parent must have no threads, and so must let torch compute in one: a thread that holds a lock while the process is
forked would never let go of it in the child.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

_ENDLESS_SECONDS = 120.0


def be_a_parent() -> None:
    """Prepare this process for forking: import what torch imports late, and start no threads."""
    torch.set_num_threads(1)
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.sum().backward()
    torch.optim.Adam([weight]).step()
    assert threading.active_count() == 1


@dataclass(slots=True)
class Child:
    """A forked process."""

    pid: int
    code: int | None = None
    """What it ended with, a signal's number being negative; None as long as nobody saw its end."""

    def poll(self) -> int | None:
        """Look whether it has ended."""
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def fork(action: Callable[[], None], log: Path, environ: Mapping[str, str] | None = None) -> Child:
    """Start a child that does something, and ends with 0, what it gave to sys.exit, or 1 and a traceback in the log."""
    pid = os.fork()
    if pid:
        return Child(pid)
    code = 1
    try:
        os.environ.update(environ or {})
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        action()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(children: Sequence[Child], seconds: float = _ENDLESS_SECONDS) -> list[int | None]:
    """Give the exit codes of children, once all have ended or the time is over."""
    end = time.monotonic() + seconds
    while None in [child.poll() for child in children] and time.monotonic() < end:
        time.sleep(0.001)
    return [child.code for child in children]


def kill(children: Sequence[Child]) -> list[int | None]:
    """Kill what is left of children, and give their exit codes."""
    for child in children:
        child.signal(signal.SIGKILL)
    return wait(children)


def last_words(directory: Path, logs: str) -> str:
    """Give the end of each of some logs, a pattern of their names."""
    return "\n".join(f"{path.name}: {path.read_text().strip()[-2000:]}" for path in sorted(directory.glob(logs)))


def torchrun_environ(rank: int, world_size: int, port: int) -> dict[str, str]:
    """What a launcher tells a rank, for ranks on one host."""
    if world_size == 1:
        return {}
    place = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    return {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


class Journal:
    """Lines of words, the first of which says what happened and the second at which step; each is one write."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, step: int, *words: object) -> None:
        os.write(self._descriptor, (" ".join([kind, str(step), *map(str, words)]) + "\n").encode())


def read_journal(path: Path) -> list[list[str]]:
    """Give the lines, word by word; none if nothing was told."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []
