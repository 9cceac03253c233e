"""The handle on the process that removes a platform's directory, and the lifeline that this process waits for."""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from estimators.local.directory_reaper import remove_listed, remove_tree
from estimators.local.errors import LocalPlatformError

_REAP_SECONDS = 5.0
"""Time limit in seconds for the processes that still lock the lifeline of a directory that is left."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_PROGRAM = str(Path(__file__).with_name("directory_reaper.py"))


class Lifeline:
    """The descriptor that owns the lock on the lifeline file: each process that writes in the directory inherits it."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # only a program that gets it on purpose inherits it
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def also_remove(self, path: Path) -> None:
        """Add a path to remove at the end, whether or not it exists yet; without effect on a full disk."""
        with suppress(OSError):
            self.write(path)

    def write(self, path: Path) -> None:
        """Append a path to the file; raise OSError if the disk is full."""
        os.write(self._descriptor, os.fsencode(path) + b"\0")

    def close(self) -> None:
        """Close this process's descriptor."""
        os.close(self._descriptor)


class DirectoryReaperProcess:
    """A process that removes a directory once no process locks its lifeline any more.

    Start it before the directory exists: then no SIGKILL comes too early to be cleaned up. If it is killed together
    with all processes of the platform, the next reaper on this machine does its work: lifelines lie in the directory
    for temporary files. Raise LocalPlatformError if no file can be locked there.
    """

    def __init__(self, directory: Path) -> None:
        # Resolved, because a lifeline counts only at the path that it lists.
        place = Path(tempfile.gettempdir()).resolve()
        remove_left(place)
        self._directory = directory
        self._path = place / f".{directory.name}{_suffix()}"
        self.lifeline = _locked(self._path, directory)
        try:
            self._process = self._start()
        except OSError:
            self._path.unlink()
            self.lifeline.close()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", _PROGRAM, str(self._path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that it outlives whatever ends this process
            cwd="/",
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait(self, timeout: float = _REAP_SECONDS) -> bool:
        """Return whether the reaper has done its work within ``timeout`` seconds; replace it if it was killed."""
        if self._process.poll():
            self._process = self._start()
        try:
            return self._process.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            return False

    def finish(self) -> None:
        """Wait for the reaper, and remove the directory at once if a forked process keeps the lifeline locked."""
        self.wait()
        with suppress(OSError):  # the reaper tries again
            remove_tree(self._directory)


def remove_left(place: Path) -> None:
    """Remove what killed reapers have left, by the lifelines in a directory for temporary files."""
    for lifeline in place.glob(f".*{_suffix()}"):
        with suppress(OSError):  # a platform runs there, or another process removes it just now
            remove_listed(lifeline, wait=False)


def _locked(path: Path, directory: Path) -> Lifeline:
    """Make a locked lifeline that lists its own path and the directory; raise LocalPlatformError if that fails.

    It gets its name only after it is locked, so an unlocked file of that name was left by a killed process.
    """
    unnamed = path.with_suffix(".new")
    lifeline = None
    try:
        lifeline = Lifeline(os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        # No wait: the file is new, and has its final name only once it is locked.
        fcntl.flock(lifeline, fcntl.LOCK_EX)
        lifeline.write(path)
        lifeline.write(directory)
        unnamed.rename(path)
    except OSError as error:
        if lifeline is not None:
            lifeline.close()
        unnamed.unlink(missing_ok=True)
        raise LocalPlatformError(
            f"{path.parent} takes no locked file ({error.strerror}): set TMPDIR to a directory on a local disk with "
            "free space."
        ) from error
    return lifeline


def _suffix() -> str:
    """Return the end of a lifeline's name, with the machine's boot ID.

    Machines that share a directory see only their own processes' locks, so each must see only its own lifelines.
    """
    try:
        boot = _BOOT.read_text().strip()
    except OSError:  # no Linux
        boot = "boot"
    return f".{boot}.lifeline"


@contextmanager
def reaped_directory(name: str) -> Iterator[tuple[Path, Lifeline]]:
    """Make a temporary directory that is removed however this process ends, and yield it with its lifeline.

    ``name`` is the prefix of the directory's own name.
    """
    # Resolved, because Docker may be allowed to share the directory itself but not a link to it.
    directory = Path(tempfile.gettempdir()).resolve() / f"{name}-{secrets.token_hex(8)}"
    reaper = DirectoryReaperProcess(directory)
    try:
        directory.mkdir(mode=0o700)
        yield directory, reaper.lifeline
    finally:
        reaper.lifeline.close()
        reaper.finish()
