"""The destination of a job, AWS or the local platform of a directory, and its encoding in an app's id.

``torchx status`` and ``torchx log`` get only an id. So the id of a local job contains its directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

import boto3

if TYPE_CHECKING:
    from estimators.local.access import Access
    from estimators.sdk.library import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """The target of jobs."""

    directory: Path | None
    """The local platform's absolute directory; None for AWS, as boto3 is configured."""

    @classmethod
    def of(cls, app_id: str) -> tuple[Destination, str]:
        """Split an app's id into its destination and the training job's name."""
        name, _, directory = app_id.partition("@")
        return cls(directory=Path(unquote(directory)) if directory else None), name

    def app_id(self, job_name: str) -> str:
        """Return the id of a training job, without slashes, which would end it in TorchX's handles."""
        return job_name if self.directory is None else f"{job_name}@{quote(str(self.directory), safe='')}"

    def boto_session(self) -> boto3.Session:
        """Return a boto3 session for this destination, or raise LocalPlatformError if no platform runs there."""
        return boto3.Session() if self.directory is None else self._access(self.directory).boto_session()

    def session(self) -> Session:
        """Return an SDK session for this destination, or raise LocalPlatformError if no platform runs there."""
        from estimators.sdk import sessions

        if self.directory is None:
            return sessions.session()
        access = self._access(self.directory)
        return sessions.session(access.boto_session(), default_bucket=access.default_bucket)

    @property
    def default_role(self) -> str | None:
        """The role of jobs that name none; None on AWS, where the SDK's configuration decides."""
        from estimators.local.access import ROLE

        return None if self.directory is None else ROLE

    @staticmethod
    def _access(directory: Path) -> Access:
        from estimators.local.kept_access import KeptAccess

        return KeptAccess(directory).require_running()
