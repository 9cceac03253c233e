"""What of a job lies on this machine: its code, and directories that its hosts see in place of copies from S3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_CHANNELS = "/opt/ml/input/data"


@dataclass(kw_only=True, slots=True, frozen=True)
class LocalFiles:
    """Files and directories of this machine. Only an executor of containers can show them to hosts."""

    code: Path | None
    """What each host gets a copy of, as /opt/ml/code; None: the code is elsewhere."""
    channels: Mapping[str, Path]
    """The file or directory of each channel that comes from no S3."""
    checkpoints: Path | None
    """The directory that every host saves checkpoints in; None: they go to S3, or nowhere."""
    checkpoint_path: str
    """Where the hosts see it."""

    @property
    def mounts(self) -> dict[str, Path]:
        """What all hosts see, by its place in them. A channel that is one file is a directory with that file."""
        channels = {
            f"{_CHANNELS}/{name}" + ("" if path.is_dir() else f"/{path.name}"): path
            for name, path in self.channels.items()
        }
        return channels | ({} if self.checkpoints is None else {self.checkpoint_path: self.checkpoints})
