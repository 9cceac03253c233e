"""The steps specific to a training job: its /opt/ml, the transfers of its checkpoints, and its model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.hosted.attempt import known_names, resource_config
from estimators.local.engine.hosted.metric_statistics import MetricPublisher
from estimators.local.engine.hosted.platform import Platform
from estimators.local.engine.hosted.record import HostedRecord
from estimators.local.engine.hosted.runner import HostedRunner
from estimators.local.engine.hosted.states import Ending, HostLossLimit
from estimators.local.engine.instance_groups import Host
from estimators.local.engine.training.request import RULES, TrainingRequest
from estimators.local.engine.transfers.artifacts import upload_model, upload_output
from estimators.local.engine.transfers.folder_sync import CheckpointSync, FolderSync, SyncedFolder
from estimators.local.engine.transfers.objects import require_writable
from estimators.local.executors import HostCluster


class TrainingRunner(HostedRunner[TrainingRequest]):
    """Runs a training job; the arguments are `HostedRunner`'s."""

    _rules = RULES
    _failure = PurePath("output", "failure")

    def __init__(self, job: HostedRecord[TrainingRequest], image: str, platform: Platform) -> None:
        super().__init__(job, image, platform)
        self._loss_limit = HostLossLimit()
        self._checkpoints: CheckpointSync | None = None
        if platform.cloudwatch is not None:
            job.metrics.publish_to(MetricPublisher(platform.cloudwatch, job.name))

    def _lay_out(self, hosts: Sequence[Host], host: Host, root: Path, cluster: HostCluster) -> None:
        lay_out(self._request, hosts, host, root, cluster)

    def _require_outputs(self) -> None:
        require_writable(self._platform.s3, self._request.output, "S3OutputPath")
        for folder in self._only_written():
            require_writable(self._platform.s3, folder.uri, f"{folder.what} output")

    def _make_syncs(self, trees: Mapping[str, HostTree]) -> Iterator[FolderSync]:
        if (folder := self._request.checkpoints) is not None:
            self._checkpoints = self._sync(CheckpointSync, folder, trees)
            self._checkpoints.download(cancelled=self._job.must_end)
            yield self._checkpoints
        for folder in self._only_written():
            yield self._sync(FolderSync, folder, trees)

    def _only_written(self) -> list[SyncedFolder]:
        return [folder for folder in self._request.synced_folders if folder is not self._request.checkpoints]

    def _gives_up(self, ending: Ending) -> bool:
        progressed = self._checkpoints is not None and self._checkpoints.progressed
        return self._loss_limit.too_many(ending, progressed=progressed)

    def _upload(self, trees: Sequence[HostTree], problems: list[str], *, failed: bool) -> str | None:
        s3, request, model = self._platform.s3, self._request, None
        if not failed:  # a failed job leaves no model
            with self._noting(problems):
                model = upload_model(s3, trees, request.output, self._directory, compressed=request.compressed)
        with self._noting(problems):
            upload_output(s3, trees, request.output, self._directory, compressed=request.compressed)
        return model


# A host's /opt/ml before its program runs: the directories, and input/config/ in SageMaker's format.
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
                    "hosts": known_names([one for one in hosts if one.group == group], cluster),
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
