"""The owner record of a checkpoint store: which run saves there, and whether that run is still alive.

Two runs in one store remove each other's checkpoints while they are written. So the first run owns the store until it
ends, and a second run is refused at its start. A killed run must not keep the store: in a directory, the kernel drops
its lock; in S3, the second run reads the record, and checks whether the first run's process is gone.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

from smddp.checkpoint.format.manifest import parse_json
from smddp.errors import CheckpointError
from smddp.process.process_tree import started

OWNER_NAME = "run.smddp-owner"
"""The name of the file or S3 object with the owner record. It is not part of a checkpoint."""

LARGEST_OWNER = 2**16
"""Bytes. A larger record is not read."""

PATIENCE_SECONDS = 10.0
"""How long a new run waits for a live owner, which may be stopping."""


class LocationTakenError(CheckpointError):
    """Another run owns the checkpoint store."""

    def __init__(self, location: str, owner: Owner | None) -> None:
        """Name the store and its owner; None if the owner is unknown."""
        who = "another run" if owner is None else f"the run {owner}"
        super().__init__(
            f"{who} saves its checkpoints in {location}: wait until it ends, or give this run another run directory or "
            "checkpoint_s3_uri"
        )


@dataclass(kw_only=True, slots=True, frozen=True)
class Owner:
    """A process that owns a checkpoint store."""

    run: str
    """The id of its run."""
    host: str
    pid: int
    since: str
    """When it took ownership, ISO 8601."""
    machine: str
    """Boot ID and PID namespace: PIDs are comparable only within the same one. Empty if unknown."""
    start: int
    """When the process started, in kernel ticks. Tells apart two processes with the same PID."""
    job: str
    """The platform's name of the job, which runs once at a time; empty without a platform."""
    renewals: int = 0
    """How often the record was rewritten: in S3, each rewrite shows that the run is alive."""

    @classmethod
    def here(cls, run: str) -> Owner:
        """Describe this process; `run` is the id of its run."""
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
        """Return a description for messages."""
        return f"{self.run} (process {self.pid} on {self.host}, since {self.since})"

    def to_json(self) -> bytes:
        """Return the content of the owner record."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Owner | None:
        """Read an owner record; None if it is malformed."""
        try:
            content: dict[str, Any] = parse_json(data)
            owner = cls(**content)
        except (ValueError, TypeError):
            return None
        types = (str, str, int, str, str, int, str, int)
        return owner if tuple(map(type, asdict(owner).values())) == types else None

    def is_same_process(self, other: Owner) -> bool:
        """Return whether both describe one process, which may open a store several times in turn."""
        return bool(self.machine) and (self.machine, self.pid, self.start) == (other.machine, other.pid, other.start)

    def state(self, seen_by: Owner) -> Literal["alive", "over", "unknown"]:
        """Return what the process `seen_by` can know about this process."""
        if self.machine and self.machine == seen_by.machine:
            return "alive" if self._is_running() else "over"
        return "over" if self.job and self.job == seen_by.job else "unknown"

    def _is_running(self) -> bool:
        """Return whether the process exists; valid only within its own PID namespace."""
        start = started(self.pid)
        if start is not None:
            return start == self.start
        try:
            os.kill(self.pid, 0)
        except PermissionError:
            return True  # another user's process, hidden in /proc
        except (OSError, OverflowError):
            pass
        return False  # it has ended, reaped or not


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""
