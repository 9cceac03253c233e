"""Which service runs a job: decided once, by the instance type and the session."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from estimators.checks.parameters import is_local_mode

if TYPE_CHECKING:
    from estimators.sdk.library import Session


class Backend(Enum):
    """The service that runs a job."""

    SAGEMAKER = auto()
    """AWS, or a local platform."""
    DOCKER = auto()
    """Docker on this machine, by our own engine."""
    SDK_LOCAL_MODE = auto()
    """Docker on this machine, by the SDK's Local Mode."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], session: Session | None) -> Backend:
        """Return the backend of a job with these parameters on this session."""
        from estimators.sdk.adapter import adapter

        if not is_local_mode(arguments):
            return cls.SAGEMAKER
        return cls.SDK_LOCAL_MODE if adapter().is_local(session) else cls.DOCKER

    @property
    def is_here(self) -> bool:
        """Whether this machine runs the job."""
        return self is not Backend.SAGEMAKER
