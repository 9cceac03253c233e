"""How a user wants jobs to run on Slurm: a value that travels from their program to the server's process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(kw_only=True, slots=True, frozen=True)
class Slurm:
    """Runs each host of a training job as a task of Slurm, each on a node of its own.

    ``LocalSageMaker(executor=Slurm(partition="gpu", shared="/nfs/me"))``. The nodes need this Python's environment
    under the same path.

    Raises:
        ValueError: There is no such directory, or an option is none.
    """

    shared: str | Path
    """An existing directory that this machine and all nodes see under the same path: the hosts' files lie in it."""
    partition: str | None = None
    """The partition; None: Slurm's default."""
    options: Sequence[str] = ()
    """More options for salloc, such as ``--gpus-per-node=4`` or ``--time=120``."""
    address: str | None = None
    """This machine's address at which nodes reach the platform's S3, where a job's code lies; None: the one from which
    this machine reaches the nodes."""

    isolated: bool = True
    """Whether a program sees its directory at ``/opt/ml``, in namespaces of its own. False is for nodes that bar these:
    it gets ``SAGEMAKER_BASE_DIR``, and its hosts are known by their addresses."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shared", str(self.shared))
        object.__setattr__(self, "options", tuple(self.options))
        if not Path(self.shared).is_absolute() or not Path(self.shared).is_dir():
            raise ValueError(f"shared={self.shared!r}: give the absolute path of a directory that all nodes share")
        for option in self.options:
            if not option.startswith("--") or len(option.split()) != 1:
                raise ValueError(f"options: {option!r} is no option for salloc: write '--name=value', one text each")
