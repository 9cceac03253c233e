"""The temporary directory of one job: the containers' files, the code, and notes to the program in Compose's place."""

from __future__ import annotations

import json
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

_MARK = "smddp-local-mode-"
_INSTRUCTIONS, _OUTCOME, _PROCESS = "instructions.json", "outcome.json", "process"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """What the SDK does not say to Compose."""

    fit_process: int
    """The id of the process that runs fit(); when it is gone, the job ends."""
    image: str
    """The image of all hosts."""
    checkpoints: str | None
    """The directory of this machine that is every host's directory of checkpoints, if there is one."""
    checkpoint_path: str
    """Where the hosts see it."""
    shared_memory: int | None
    """Bytes of /dev/shm; None leaves it to the user's own configuration of containers."""
    ends_with_first_host: bool
    """Whether the job is over when its first host is done: the others only serve it."""
    shows_log: bool
    """Whether the hosts' lines are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended."""

    status: Literal["Completed", "Failed", "Stopped"]
    host: str | None
    """Where it went wrong first, if it did."""
    reason: str
    """Why; empty after a good end."""


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """Where everything of one job lies."""

    path: Path
    """The directory itself; its name is the job's label in Docker."""

    @classmethod
    def make(cls, parent: str | None) -> JobDirectory:
        """A new one.

        Args:
            parent: Where; None is the system's own place for temporary files.
        """
        # Resolved: Docker Desktop shares /private/var, not the link /var to it.
        directory = cls(Path(tempfile.mkdtemp(prefix=_MARK, dir=parent)).resolve())
        directory.containers.mkdir()
        directory.artifacts.mkdir()
        return directory

    @classmethod
    def of(cls, compose_file: Path) -> JobDirectory | None:
        """The one that a Compose file of the SDK lies in; None if it is no job of ours."""
        directory = cls(compose_file.absolute().parent.parent.parent)
        return directory if (directory.path / _INSTRUCTIONS).is_file() else None

    @property
    def label(self) -> str:
        """What Docker knows the job's containers by."""
        return self.path.name

    @property
    def containers(self) -> Path:
        """Where the SDK makes its own temporary directories."""
        return self.path / "containers"

    @property
    def code(self) -> Path:
        """The bundle of training code, which the containers see as /opt/ml/code."""
        return self.path / "code"

    @property
    def artifacts(self) -> Path:
        """Where the SDK puts model.tar.gz and output.tar.gz, if the job names no place for them."""
        return self.path / "artifacts"

    @property
    def left_by_sdk(self) -> list[Path]:
        """What the SDK made of a job's results and did not deliver, be it because it failed or was broken off."""
        places = ("compressed_artifacts/*", "artifacts/*/*")
        return [path for place in places for path in self.containers.glob(f"*/{place}")]

    @property
    def programs(self) -> Path:
        """What stands in front of PATH."""
        return self.path / "programs"

    @property
    def process(self) -> Path:
        """Holds the id of the process that runs in Compose's place, while it runs."""
        return self.path / _PROCESS

    @property
    def instructions(self) -> Instructions:
        """What was written by `instruct`."""
        return Instructions(**self._read(_INSTRUCTIONS))

    @property
    def stamp(self) -> Path:
        """A file that no one changes once the containers may run: what changed after it is their work."""
        return self.path / _INSTRUCTIONS

    def instruct(self, instructions: Instructions) -> None:
        """Write down what the program in Compose's place needs to know."""
        (self.path / _INSTRUCTIONS).write_text(json.dumps(asdict(instructions)))

    @property
    def outcome(self) -> Outcome | None:
        """How the job ended; None if it never came to run."""
        return Outcome(**self._read(_OUTCOME)) if (self.path / _OUTCOME).exists() else None

    def conclude(self, outcome: Outcome) -> None:
        """Write down how the job ended."""
        (self.path / _OUTCOME).write_text(json.dumps(asdict(outcome)))

    def remove(self) -> None:
        """Delete it all."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _read(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.path / name).read_text())
        return content
