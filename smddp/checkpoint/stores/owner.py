"""Which run saves in a place: what it leaves there for a second one to see, and what that one can know of the first.

Two runs in one place remove each other's checkpoints while they are written. So the first has the place until it ends,
and a second is refused at its start. A run that was killed must not keep the place: where the second can, it sees that
the first's process is gone.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from smddp.checkpoint.format import strict_json
from smddp.errors import CheckpointError
from smddp.process.process_tree import started

OWNER_NAME = "run.smddp-owner"
"""What the file, or the object in S3, is called that says who saves in a place. It is no part of any checkpoint."""

LARGEST_OWNER = 2**16
"""Bytes; nothing larger is read."""

PATIENCE_SECONDS = 10.0
"""How long a run waits for the one before it to end, that is still there: it may just be stopping."""


class PlaceTakenError(CheckpointError):
    """Another run saves in the place."""

    def __init__(self, place: str, owner: Owner | None) -> None:
        """Say who.

        Args:
            place: Where.
            owner: Who; None if that cannot be seen.
        """
        who = "another run" if owner is None else f"the run {owner}"
        super().__init__(
            f"{who} saves its checkpoints in {place}, and two runs in one place would remove each other's; stop that "
            "one, or give this one a place of its own (to read beside a run, take load_weights, export or find_best)"
        )


@dataclass(kw_only=True, slots=True, frozen=True)
class Owner:
    """A process that saves in a place."""

    run: str
    """The id of its run."""
    host: str
    pid: int
    since: str
    """When it took the place, ISO 8601."""
    machine: str
    """The boot of a kernel and the process namespace in it, within which pids can be compared; empty if not known."""
    start: int
    """When the process started, in the kernel's ticks: a pid is used again, both are not."""
    job: str
    """The name of the job, as the platform gives it, which runs a job once at a time; empty if there is none."""
    renewals: int = 0
    """How often this was written again, where that tells that the run goes on."""

    @classmethod
    def here(cls, run: str) -> Owner:
        """Describe this process.

        Args:
            run: The id of its run.
        """
        return cls(
            run=run,
            host=socket.gethostname(),
            pid=os.getpid(),
            since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            machine=_machine(),
            start=started(os.getpid()) or 0,
            job=os.environ.get("TRAINING_JOB_NAME", ""),
        )

    def __str__(self) -> str:
        """Say who it is, for people."""
        return f"{self.run} (process {self.pid} on {self.host}, since {self.since})"

    def to_json(self) -> bytes:
        """Give what is left in the place."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Owner | None:
        """Read what somebody left; None if it says nothing."""
        try:
            content: dict[str, Any] = strict_json.loads(data)
            owner = cls(**content)
        except (ValueError, TypeError):
            return None
        types = (str, str, int, str, str, int, str, int)
        return owner if tuple(map(type, asdict(owner).values())) == types else None

    def is_same_process(self, other: Owner) -> bool:
        """Return whether both are one process, which may save in one place by several objects, one after the other."""
        return bool(self.machine) and (self.machine, self.pid, self.start) == (other.machine, other.pid, other.start)

    def state(self, seen_by: Owner) -> Literal["alive", "over", "unknown"]:
        """Say what another process can know of this one.

        Args:
            seen_by: The other.
        """
        if self.machine and self.machine == seen_by.machine:
            return "alive" if self._is_running() else "over"
        return "over" if self.job and self.job == seen_by.job else "unknown"

    def _is_running(self) -> bool:
        """Return whether the process is there, in whose namespace this one is."""
        start = started(self.pid)
        if start is not None:
            return start == self.start
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            return True  # another user's, hidden in /proc
        except (OSError, OverflowError):
            pass
        return False  # it has ended, whether anybody asked for its code or not


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""
