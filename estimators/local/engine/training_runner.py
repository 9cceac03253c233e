"""The steps specific to a training job: checkpoints in and out, the model, and the limit on lost hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.artifacts import upload_model, upload_output
from estimators.local.engine.checkpoints import CheckpointSync
from estimators.local.engine.ending import Ending, HostLossLimit
from estimators.local.engine.folder_sync import FolderSync
from estimators.local.engine.hosts import Host
from estimators.local.engine.job_request import SyncedFolder
from estimators.local.engine.job_runner import HostedRunner
from estimators.local.engine.job_state import HostedRecord
from estimators.local.engine.logs import TRAINING_JOBS
from estimators.local.engine.metric_publisher import MetricPublisher
from estimators.local.engine.objects import require_place
from estimators.local.engine.opt_ml import lay_out
from estimators.local.engine.platform import Platform
from estimators.local.engine.request import TrainingRequest
from estimators.local.engine.supported_fields import RULES
from estimators.local.executors import HostCluster


class TrainingRunner(HostedRunner[TrainingRequest]):
    """Runs a training job; the arguments are `HostedRunner`'s."""

    _log_group = TRAINING_JOBS
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

    def _require_places(self) -> None:
        require_place(self._platform.s3, self._request.output, "S3OutputPath")
        for folder in self._only_written():
            require_place(self._platform.s3, folder.uri, f"{folder.what} output")

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
