"""Where a job runs: on AWS, or on the local platform of a directory; and how an app's id keeps that.

``torchx status`` and ``torchx log`` are given an id and nothing else. So the id of a local job names its directory.
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
    """Where jobs are sent."""

    directory: Path | None
    """That of the local platform, absolute; None is AWS, as boto3 is configured."""

    @classmethod
    def of(cls, app_id: str) -> tuple[Destination, str]:
        """Return the destination that an app's id names, and the training job's name there."""
        name, _, directory = app_id.partition("@")
        return cls(directory=Path(unquote(directory)) if directory else None), name

    def app_id(self, job_name: str) -> str:
        """Return the id of a training job here; no slash is in it, which would end it in TorchX's handles."""
        return job_name if self.directory is None else f"{job_name}@{quote(str(self.directory), safe='')}"

    def boto_session(self) -> boto3.Session:
        """Return a session of boto3 that leads here, for what needs no SDK.

        Raises:
            LocalPlatformError: No local platform runs on the directory.
        """
        return boto3.Session() if self.directory is None else self._access(self.directory).boto_session()

    def session(self) -> Session:
        """Return a session of the SageMaker SDK that leads here.

        Raises:
            LocalPlatformError: No local platform runs on the directory.
        """
        from estimators.sdk import sessions

        if self.directory is None:
            return sessions.session()
        access = self._access(self.directory)
        return sessions.session(access.boto_session(), default_bucket=access.default_bucket)

    @property
    def default_role(self) -> str | None:
        """The role of jobs that name none; on AWS that of the SDK's configuration."""
        from estimators.local.access import ROLE

        return None if self.directory is None else ROLE

    @staticmethod
    def _access(directory: Path) -> Access:
        from estimators.local.kept_access import KeptAccess

        return KeptAccess(directory).require_running()
