"""Faults on demand: throttled, failing or slow requests, and jobs that lack capacity or lose their hosts."""

from __future__ import annotations

from estimators.local.chaos.chaos import Chaos as Chaos
from estimators.local.chaos.faults import (
    TAG as TAG,
)
from estimators.local.chaos.faults import (
    Fault as Fault,
)
from estimators.local.chaos.faults import (
    JobFault as JobFault,
)
from estimators.local.chaos.faults import (
    LoseHost as LoseHost,
)
from estimators.local.chaos.faults import (
    NoCapacity as NoCapacity,
)
from estimators.local.chaos.faults import (
    Reclaim as Reclaim,
)
from estimators.local.chaos.faults import (
    RequestFault as RequestFault,
)
from estimators.local.chaos.faults import (
    ServerError as ServerError,
)
from estimators.local.chaos.faults import (
    Slow as Slow,
)
from estimators.local.chaos.faults import (
    Throttle as Throttle,
)
from estimators.local.chaos.faults import (
    parse as parse,
)
from estimators.local.chaos.faults import (
    require_job_faults as require_job_faults,
)
from estimators.local.chaos.faults import (
    tag as tag,
)
