"""Makes a host's /opt/ml before its program runs: the directories, and input/config/ in SageMaker's format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.local.engine.hosts import Host
from estimators.local.engine.request import TrainingRequest
from estimators.local.executors import HostCluster

_DIRECTORIES = ("input/config", "input/data", "model", "output/data")

_LOCAL_CHANNEL = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
"""The entry of a channel that is a directory of this machine."""


def lay_out(request: TrainingRequest, hosts: Sequence[Host], host: Host, root: Path, cluster: HostCluster) -> None:
    """Make one host's /opt/ml at ``root``, which must not exist yet."""
    channels = [f"input/data/{channel.name}" for channel in request.channels if channel.mode != "Pipe"]
    files = request.files
    for directory in (*_DIRECTORIES, *channels, *(f"input/data/{name}" for name in (files.channels if files else ()))):
        (root / directory).mkdir(parents=True)
    if files is not None and files.code is not None:
        shutil.copytree(files.code, root / "code", symlinks=True)
    else:
        (root / "code").mkdir()
    for folder in request.synced_folders:
        (root / folder.path).mkdir(parents=True, exist_ok=True)
    config = root / "input" / "config"
    for name, content in _configuration(request, hosts, host, cluster).items():
        (config / f"{name}.json").write_text(json.dumps(content))


def resource_config(hosts: Sequence[Host], host: Host, cluster: HostCluster) -> dict[str, Any]:
    """Return the part of a host's resourceconfig.json that all kinds of jobs share."""
    return {
        "current_host": cluster.known_as(host.name),
        "current_instance_type": host.instance_type,
        "hosts": _names(hosts, cluster),
        "network_interface_name": cluster.interface,
    }


def _names(hosts: Sequence[Host], cluster: HostCluster) -> list[str]:
    return [cluster.known_as(host.name) for host in sorted(hosts, key=lambda one: one.name)]


def _configuration(
    request: TrainingRequest, hosts: Sequence[Host], host: Host, cluster: HostCluster
) -> dict[str, Mapping[str, Any]]:
    local = request.files
    files: dict[str, Mapping[str, Any]] = {
        "hyperparameters": request.hyperparameters,
        "inputdataconfig": {
            **{channel.name: channel.config for channel in request.channels},
            **dict.fromkeys(local.channels if local else (), _LOCAL_CHANNEL),
        },
        "resourceconfig": {
            **resource_config(hosts, host, cluster),
            "current_group_name": host.group,
            "instance_groups": [
                {
                    "instance_group_name": group,
                    "instance_type": instance_type,
                    "hosts": _names([one for one in hosts if one.group == group], cluster),
                }
                for group, instance_type in dict.fromkeys((one.group, one.instance_type) for one in hosts)
            ],
        },
    }
    root = cluster.ml_root(host.name)
    if (tensorboard := request.tensorboard) is not None:
        config = request.members["TensorBoardOutputConfig"]
        files["tensorboardoutputconfig"] = {**config, "LocalPath": str(root / tensorboard.path)}
    if (tensors := request.tensors) is not None:
        files["debughookconfig"] = {**request.members["DebugHookConfig"], "LocalPath": str(root / tensors.path)}
    if (checkpoints := request.checkpoints) is not None:
        files["checkpointconfig"] = {"S3Uri": str(checkpoints.uri), "LocalPath": str(root / checkpoints.path)}
    elif local is not None and local.checkpoints is not None:
        files["checkpointconfig"] = {"LocalPath": local.checkpoint_path}
    return files
