"""Hosts as containers: a cluster is a Docker network, a host a container in it, an image one of this machine's."""

from __future__ import annotations

from estimators.local.executors.docker.executor import DockerExecutor, bridge_address
from estimators.local.executors.settings import Docker

__all__ = ["Docker", "DockerExecutor", "bridge_address"]
