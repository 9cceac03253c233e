"""The steps specific to a processing job: its directories, its outputs, and its programs' exit message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.folder_sync import FolderSync
from estimators.local.engine.hosts import Host
from estimators.local.engine.job_request import ML_ROOT
from estimators.local.engine.job_runner import JobRunner
from estimators.local.engine.logs import PROCESSING_JOBS
from estimators.local.engine.objects import require_place
from estimators.local.engine.platform import Platform
from estimators.local.engine.processing.exit_message import MESSAGE, exit_message
from estimators.local.engine.processing.members import RULES
from estimators.local.engine.processing.opt_ml import lay_out
from estimators.local.engine.processing.python_environment import in_python_environment, make_python_environment
from estimators.local.engine.processing.record import ProcessingRecord
from estimators.local.engine.processing.request import ProcessingRequest
from estimators.local.executors import HostCluster


class ProcessingRunner(JobRunner[ProcessingRequest]):
    """Runs a processing job; the arguments are `JobRunner`'s."""

    _log_group = PROCESSING_JOBS
    _rules = RULES
    _failure = MESSAGE

    def __init__(self, job: ProcessingRecord, image: str, platform: Platform) -> None:
        self._own_python = not platform.executor.runs_images
        if self._own_python:
            found = {**platform.container_environment, **in_python_environment(ML_ROOT)}
            platform = replace(platform, container_environment=found)
        super().__init__(job, image, platform)
        self._record = job
        self._trees: Mapping[str, HostTree] = {}

    def _lay_out(self, hosts: Sequence[Host], host: Host, root: Path, cluster: HostCluster) -> None:
        lay_out(self._record, hosts, host, root, cluster)
        if self._own_python:
            make_python_environment(root)

    def _require_places(self) -> None:
        for output in self._request.outputs:
            require_place(self._platform.s3, output.uri, "S3Output")

    def _make_syncs(self, trees: Mapping[str, HostTree]) -> Iterator[FolderSync]:
        self._trees = trees
        return (self._sync(FolderSync, output, trees) for output in self._request.outputs if output.continuous)

    def _upload(self, trees: Sequence[HostTree], problems: list[str], *, failed: bool) -> None:
        for output in self._request.outputs:
            if output.continuous:
                continue
            if failed:
                for tree in trees:
                    tree.tell(output.path, "is not uploaded: the job failed, and its S3UploadMode is EndOfJob")
                continue
            with self._noting(problems):
                self._sync(FolderSync, output, self._trees).finish()
        with self._noting(problems):
            if message := exit_message(self._trees):
                self._record.leave_message(message)

    def _remarks(self) -> Iterator[str]:
        yield from super()._remarks()
        if self._request.network_isolation and self._own_python:
            yield "NetworkConfig.EnableNetworkIsolation is not done here: hosts that are processes share a network"
