"""The handle on the process that removes a platform's directory, and the lifeline by which it knows when.

The lifeline is a named pipe beside the directory. If the process is killed together with all that write there, the next
one in the same place finds a lifeline that nobody has, and removes what is left. Whether anybody has one can only be
seen on the machine where it is: the machine's boot is in its name, for directories that several machines share.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from estimators.local.directory_reaper import remove_tree

_REAP_SECONDS = 5.0
"""How long a directory that is left waits for those who have its lifeline yet."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROGRAM = str(Path(__file__).with_name("directory_reaper.py"))


class Lifeline:
    """An end of the pipe that keeps the reaper waiting: it is open in each process that writes in the directory.

    Args:
        descriptor: The pipe's end for writing.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # only whoever is handed it on purpose is to have it
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def also_remove(self, path: Path) -> None:
        """Have something outside the directory removed, too, whether or not it is there yet."""
        with suppress(BrokenPipeError):  # the reaper was killed: what ends in order removes it by itself
            os.write(self._descriptor, os.fsencode(path) + b"\n")

    def close(self) -> None:
        """Let go."""
        os.close(self._descriptor)


class DirectoryReaperProcess:
    """A process that removes a directory once nobody has its lifeline any more.

    Args:
        directory: It need not be there yet: where the reaper comes first, no SIGKILL comes too early to be cleaned up.
    """

    def __init__(self, directory: Path) -> None:
        remove_left(directory.parent)
        lifeline = _lifeline_of(directory)
        waiting, descriptor = _opened(lifeline)
        self.lifeline = Lifeline(descriptor)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", _PROGRAM, str(directory), str(lifeline)],
                stdin=waiting,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # so that it outlives whatever ends this process
                cwd="/",
            )
        except BaseException:  # nobody removes anything: what was made goes here
            self.lifeline.close()
            lifeline.unlink(missing_ok=True)
            raise
        finally:
            os.close(waiting)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait(self, timeout: float) -> bool:
        """Return whether it has ended within some seconds, and so everybody who had the lifeline."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True


def remove_left(place: Path) -> None:
    """Remove the directories in a place that were left there when their reapers were killed, too."""
    for lifeline in place.glob(_lifeline_of(place / "*").name):
        directory = place / lifeline.name[1:].removesuffix(_suffix())
        with suppress(OSError):  # another platform removes it just now
            if not _is_ours(lifeline) or _has_anybody(lifeline):
                continue
            if not directory.exists() or directory.lstat().st_uid == os.geteuid():
                remove_tree(directory)
                lifeline.unlink()


def _lifeline_of(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}{_suffix()}")


def _suffix() -> str:
    try:
        boot = _BOOT.read_text().strip()
    except OSError:  # no Linux
        boot = "boot"
    return f".{boot}.lifeline"


def _opened(lifeline: Path) -> tuple[int, int]:
    """Make a lifeline; its ends for reading and writing. It gets its name when both are open: none is ever alone."""
    unnamed = lifeline.with_suffix(".new")
    try:
        os.mkfifo(unnamed, 0o600)
    except OSError:  # a file system without named pipes: nothing can be found there later
        return os.pipe()
    waiting = os.open(unnamed, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    descriptor = os.open(unnamed, os.O_WRONLY | os.O_CLOEXEC)
    os.set_blocking(waiting, True)
    unnamed.rename(lifeline)
    return waiting, descriptor


def _is_ours(lifeline: Path) -> bool:
    found = lifeline.lstat()
    return stat.S_ISFIFO(found.st_mode) and found.st_uid == os.geteuid()


def _has_anybody(lifeline: Path) -> bool:
    """Return whether a reaper waits at a lifeline, or somebody holds it: where one reads, a look would take a byte."""
    try:
        os.close(os.open(lifeline, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    else:
        return True
    waiting = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return os.read(waiting, 1) != b""
    except BlockingIOError:
        return True
    finally:
        os.close(waiting)


@contextmanager
def reaped_directory(name: str) -> Iterator[tuple[Path, Lifeline]]:
    """Make a temporary directory that goes however this process ends, with its lifeline.

    Args:
        name: What its own name begins with.
    """
    # Resolved: Docker may share the directory itself, and not a link to it.
    directory = Path(tempfile.gettempdir()).resolve() / f"{name}-{secrets.token_hex(8)}"
    reaper = DirectoryReaperProcess(directory)
    try:
        directory.mkdir(mode=0o700)
        yield directory, reaper.lifeline
        with suppress(OSError):  # the reaper tries again
            remove_tree(directory)
    finally:
        reaper.lifeline.close()
        reaper.wait(_REAP_SECONDS)
