"""Faults on demand: throttled, failing or slow requests, and jobs that lack capacity or lose their hosts."""

from __future__ import annotations

from estimators.local.chaos.chaos import Chaos
from estimators.local.chaos.faults import (
    TAG,
    Fault,
    JobFault,
    LoseHost,
    NoCapacity,
    Reclaim,
    RequestFault,
    ServerError,
    Slow,
    Throttle,
    parse,
    require_job_faults,
    tag,
)

__all__ = [
    "TAG",
    "Chaos",
    "Fault",
    "JobFault",
    "LoseHost",
    "NoCapacity",
    "Reclaim",
    "RequestFault",
    "ServerError",
    "Slow",
    "Throttle",
    "parse",
    "require_job_faults",
    "tag",
]
