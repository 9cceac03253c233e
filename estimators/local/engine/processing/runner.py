"""The steps specific to a processing job: its directories, its outputs, and its programs' exit message."""

from __future__ import annotations

import codecs
import json
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath, PurePosixPath
from typing import Any

from estimators.hosts.opt_ml_tree import HostTree
from estimators.local.engine.errors import FailedJobError
from estimators.local.engine.hosted.attempt import resource_config
from estimators.local.engine.hosted.platform import Platform
from estimators.local.engine.hosted.request import ML_ROOT
from estimators.local.engine.hosted.runner import HostedRunner
from estimators.local.engine.instance_groups import Host
from estimators.local.engine.processing.record import ProcessingRecord
from estimators.local.engine.processing.request import RULES, ProcessingRequest
from estimators.local.engine.transfers.folder_sync import FolderSync
from estimators.local.engine.transfers.objects import require_writable
from estimators.local.executors import HostCluster, inherited_environment
from smddp.container.virtual_environment import activated

_MESSAGE = PurePath("output", "message")
_LIMIT_BYTES = 1024
"""AWS's limit on a message, and on the messages of all hosts together."""


def _exit_message(trees: Mapping[str, HostTree]) -> str:
    """Return the messages of all hosts, joined and cut as on AWS; raise FailedJobError if one is not UTF-8."""
    return _cut("".join(_message(host, tree) for host, tree in trees.items()).encode(), whole=False)


def _message(host: str, tree: HostTree) -> str:
    status = tree.status(_MESSAGE)
    if status is None or not stat.S_ISREG(status.st_mode):
        return ""
    with tree.reading(_MESSAGE) as path, path.open("rb") as file:
        content = file.read(_LIMIT_BYTES + 1)
    try:
        return _cut(content, whole=len(content) <= _LIMIT_BYTES)
    except UnicodeDecodeError as error:
        raise FailedJobError(
            f"ClientError: /opt/ml/{_MESSAGE} of {host} is not UTF-8 ({error.reason} at byte {error.start}); write "
            "text."
        ) from error


def _cut(content: bytes, *, whole: bool) -> str:
    """Return the first `_LIMIT_BYTES` as text; leave out a character that the cut splits, unless ``whole``."""
    return codecs.getincrementaldecoder("utf-8")().decode(content[:_LIMIT_BYTES], final=whole)


class ProcessingRunner(HostedRunner[ProcessingRequest]):
    """Runs a processing job; the arguments are `HostedRunner`'s."""

    _rules = RULES
    _failure = _MESSAGE

    def __init__(self, job: ProcessingRecord, image: str, platform: Platform) -> None:
        self._python = platform.executor.python
        if self._python is not None:
            found = {**platform.container_environment, **_in_python_environment(self._python, ML_ROOT)}
            platform = replace(platform, container_environment=found)
        super().__init__(job, image, platform)
        self._record = job
        self._trees: Mapping[str, HostTree] = {}

    def _lay_out(self, hosts: Sequence[Host], host: Host, root: Path, cluster: HostCluster) -> None:
        _lay_out(self._record, hosts, host, root, cluster)
        if self._python is not None:
            _make_python_environment(self._python, root)

    def _require_outputs(self) -> None:
        for output in self._request.outputs:
            require_writable(self._platform.s3, output.uri, "S3Output")

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
            if message := _exit_message(self._trees):
                self._record.leave_message(message)

    def _remarks(self) -> Iterator[str]:
        yield from super()._remarks()
        if self._request.network_isolation and self._python is not None:
            yield "NetworkConfig.EnableNetworkIsolation is not done here: hosts that are processes share a network"


_DIRECTORIES = tuple(map(PurePosixPath, ("config", "output", "processing")))


def _lay_out(job: ProcessingRecord, hosts: Sequence[Host], host: Host, root: Path, cluster: HostCluster) -> None:
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


# A host's own environment without an image: packages that its program installs stay out of the Python that runs it.
#
# The SDK's FrameworkProcessor installs a requirements.txt with the first ``pip`` in PATH. Without an image, that would
# be the ``pip`` of the Python that runs the hosts.
_DIRECTORY = "venv"
_PIP = '#!/bin/sh\nexec "$(dirname "$0")/python" -m pip "$@"\n'


def _make_python_environment(python: str, root: Path) -> None:
    """Make a virtual environment in a host's tree that sees all packages of the Python that runs the hosts."""
    directory, programs = root / _DIRECTORY, root / _DIRECTORY / "bin"
    command = [python, "-m", "smddp.container.virtual_environment", str(directory)]
    subprocess.run(command, check=True, env=inherited_environment(python, hosts=1))
    for name in ("pip", "pip3"):
        program = programs / name
        program.write_text(_PIP)
        program.chmod(0o755)


def _in_python_environment(python: str, ml_root: PurePath) -> dict[str, str]:
    """Return the variables by which a program that sees the tree at ``ml_root`` finds its environment first."""
    inherited = inherited_environment(python, hosts=1)
    return {"PATH": activated(inherited, str(ml_root / _DIRECTORY / "bin" / "python"))["PATH"]}
