"""Where the console's jobs are, the local platform or an AWS account, and what the pages may do to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from estimators.training_job import TrainingJob

if TYPE_CHECKING:
    import boto3


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One region of an account, or a local platform. Its clients are thread-safe."""

    name: str
    """Its name on the pages."""
    session: boto3.Session
    may_write: bool = False
    """Whether the pages have buttons that stop and resume jobs."""
    interrupt: Callable[[str], object] | None = None
    """Interrupts the spot job of this name; None if not possible."""
    sagemaker: Any = field(init=False)
    """A boto3 client."""
    logs: Any = field(init=False)
    """A boto3 client of CloudWatch Logs."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sagemaker", self.session.client("sagemaker"))
        object.__setattr__(self, "logs", self.session.client("logs"))

    def job(self, name: str) -> TrainingJob:
        """Return a handle on a job. Sends no request."""
        return TrainingJob(name, self.session)
