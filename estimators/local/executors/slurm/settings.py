"""The user's settings for jobs on Slurm: a value that goes from the user's program to the server's process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(kw_only=True, slots=True, frozen=True)
class Slurm:
    """Runs each host of a training job as a task of Slurm, one host on each node.

    ``LocalSageMaker(executor=Slurm(partition="gpu", shared="/nfs/me"))``. The nodes need this Python's environment
    under the same path.

    Raises:
        ValueError: `shared` is not an absolute path of a directory, or an option is not one word starting with ``--``.
    """

    shared: str | Path
    """An existing directory under the same path on this machine and all nodes; it contains the hosts' files."""
    partition: str | None = None
    """The partition; None: Slurm's default."""
    options: Sequence[str] = ()
    """More options for salloc, such as ``--gpus-per-node=4`` or ``--time=120``."""
    address: str | None = None
    """Address of this machine for the nodes' requests to the platform's S3, which has a job's code; None: the address
    from which this machine reaches the nodes."""

    isolated: bool = True
    """Whether a program sees its directory at ``/opt/ml``, in its own namespaces. Give False for nodes that bar
    namespaces: then the program gets ``SAGEMAKER_BASE_DIR``, and its hosts are known by their addresses."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared", str(self.shared))
        object.__setattr__(self, "options", tuple(self.options))
        if not Path(self.shared).is_absolute() or not Path(self.shared).is_dir():
            raise ValueError(f"shared={self.shared!r}: give the absolute path of a directory that all nodes share")
        for option in self.options:
            if not option.startswith("--") or len(option.split()) != 1:
                raise ValueError(f"options: {option!r} is no option for salloc: write '--name=value', one text each")
