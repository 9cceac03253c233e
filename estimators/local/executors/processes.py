"""The user's settings for jobs as processes: a value that goes from the user's program to the server's process."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(kw_only=True, slots=True, frozen=True)
class Processes:
    """Runs each host of a job as processes of this machine, in the environment of one Python.

    ``LocalSageMaker(executor=Processes(python="/opt/env/bin/python"))``. Without an executor it is the Python that
    starts the platform.

    Raises:
        ValueError: `python` is not the absolute path of a program.
    """

    python: str | Path = field(default_factory=lambda: sys.executable)
    """Runs the hosts in place of a job's image: it has torch, smddp and pip."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "python", str(self.python))
        if not Path(self.python).is_absolute() or not os.access(self.python, os.X_OK):
            raise ValueError(f"python={self.python!r}: give the absolute path of a Python, such as {sys.executable!r}")

    @property
    def runs_here(self) -> bool:
        """Whether it is the Python that starts the platform."""
        return self.python == sys.executable
