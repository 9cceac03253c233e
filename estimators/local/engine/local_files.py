"""The files of a job on this machine: its code, and directories that its hosts see instead of copies from S3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_CHANNELS = "/opt/ml/input/data"


@dataclass(kw_only=True, slots=True, frozen=True)
class LocalFiles:
    """Files and directories of this machine. Only an executor of containers can mount them."""

    code: Path | None
    """Copied to each host as /opt/ml/code; None: the code is elsewhere."""
    channels: Mapping[str, Path]
    """The file or directory of each channel that is not in S3."""
    checkpoints: Path | None
    """The directory of all hosts' checkpoints; None: S3, or no checkpoints."""
    checkpoint_path: str
    """The path of that directory on the hosts."""

    @property
    def mounts(self) -> dict[str, Path]:
        """Local paths by their paths on the hosts. A channel that is one file becomes a directory with that file."""
        channels = {
            f"{_CHANNELS}/{name}" + ("" if path.is_dir() else f"/{path.name}"): path
            for name, path in self.channels.items()
        }
        return channels | ({} if self.checkpoints is None else {self.checkpoint_path: self.checkpoints})
