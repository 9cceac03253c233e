"""Makes a host's /opt/ml before a processing job's program runs: the directories, and config/ in AWS's format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from estimators.local.engine.hosts import Host
from estimators.local.engine.opt_ml import resource_config
from estimators.local.engine.processing.record import ProcessingRecord
from estimators.local.executors import HostCluster

_DIRECTORIES = tuple(map(PurePosixPath, ("config", "output", "processing")))


def lay_out(job: ProcessingRecord, hosts: Sequence[Host], host: Host, root: Path, cluster: HostCluster) -> None:
    """Make one host's /opt/ml at ``root``."""
    paths = [*(channel.path for channel in job.request.channels), *(output.path for output in job.request.outputs)]
    for directory in (*_DIRECTORIES, *paths):
        (root / directory).mkdir(parents=True, exist_ok=True)
    files = {"processingjobconfig": _job_config(job), "resourceconfig": resource_config(hosts, host, cluster)}
    for name, content in files.items():
        (root / "config" / f"{name}.json").write_text(json.dumps(content))


def _job_config(job: ProcessingRecord) -> dict[str, Any]:
    asked = job.describe_request()
    application, outputs = asked["AppSpecification"], asked.get("ProcessingOutputConfig", {"Outputs": []})
    cluster: Mapping[str, Any] = asked["ProcessingResources"]["ClusterConfig"]
    return {
        "ProcessingJobArn": job.arn,
        "ProcessingJobName": job.name,
        "AppSpecification": {"ContainerEntrypoint": None, "ContainerArguments": None, **application},
        "Environment": asked.get("Environment", {}),
        "ProcessingInputs": [_input(given) for given in asked.get("ProcessingInputs", ())],
        "ProcessingOutputConfig": {"KmsKeyId": None, **outputs},
        "ProcessingResources": {"ClusterConfig": {"VolumeKmsKeyId": None, **cluster}},
        "RoleArn": asked["RoleArn"],
        "StoppingCondition": asked["StoppingCondition"],
    }


def _input(given: Mapping[str, Any]) -> dict[str, Any]:
    if "S3Input" not in given:
        return dict(given)
    return {**given, "S3Input": {**given["S3Input"], "S3DownloadMode": "StartOfJob"}}
