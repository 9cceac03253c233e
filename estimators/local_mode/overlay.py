"""What Compose is told on top of the SDK's own file: a second Compose file, of the same version and services."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from estimators.local_mode.containers import HOST_LABEL, JOB_LABEL
from estimators.local_mode.directory import Instructions

STOP_SECONDS = 120
"""What a host gets to save a checkpoint when the user stops the job, as on SageMaker."""

_VERSION = re.compile(r"""^version: ["']?([\d.]+)""", re.MULTILINE)
_SDKS_NETWORK = "sagemaker-local"


def overlay(sdks_file: str, services: Mapping[str, str], instructions: Instructions, job: str) -> dict[str, Any]:
    """The second file's content.

    Args:
        sdks_file: The SDK's file, as text.
        services: The names of hosts by those that the SDK gave them in its file.
        instructions: What the job needs.
        job: What Docker is to know the job by: the label of its containers, and a network of its own, for the
            SDK's is common to all jobs of this machine and never removed.
    """
    service: dict[str, Any] = {"stop_grace_period": f"{STOP_SECONDS}s"}
    if instructions.shared_memory:
        service["shm_size"] = instructions.shared_memory
    if instructions.checkpoints:
        # In full: the short form would take a colon in a path for the end of it.
        place = {"source": instructions.checkpoints, "target": instructions.checkpoint_path}
        service["volumes"] = [{"type": "bind", **place}]
    version = _VERSION.search(sdks_file)
    return {
        **({"version": version[1]} if version else {}),
        "networks": {_SDKS_NETWORK: {"name": job}},
        "services": {
            name: {**service, "labels": {JOB_LABEL: job, HOST_LABEL: host}} for name, host in services.items()
        },
    }


def literal(content: str) -> str:
    """A Compose file in which a dollar sign is one: the SDK writes values as they are, and Compose sees variables."""
    return content.replace("$", "$$")


def services_of(root: Path) -> dict[str, str]:
    """The hosts that the SDK made directories for, in its order: ``algo-1`` by ``algo-1-x7k2p``."""
    configuration = next(root.glob("*/input/config/resourceconfig.json"))
    names: list[str] = json.loads(configuration.read_text())["hosts"]
    return {name: name.rpartition("-")[0] for name in names}
