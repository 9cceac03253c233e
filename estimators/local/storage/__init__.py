"""The platform's S3 objects: on disk in SeaweedFS, or in moto's memory, which needs nothing from here."""

from __future__ import annotations

from estimators.local.storage.gateway import Gateway as Gateway
from estimators.local.storage.seaweedfs import SeaweedFS as SeaweedFS

__all__ = ["Gateway", "SeaweedFS"]
