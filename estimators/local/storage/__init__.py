"""Where the platform's S3 objects lie: in moto's memory, which needs nothing from here, or in SeaweedFS on disk."""

from __future__ import annotations

from estimators.local.storage.gateway import Gateway as Gateway
from estimators.local.storage.seaweedfs import SeaweedFS as SeaweedFS

__all__ = ["Gateway", "SeaweedFS"]
