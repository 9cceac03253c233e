"""Processing jobs of an engine, as boto3 would show them."""

from __future__ import annotations

import sys
import textwrap
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimators.local.engine import Engine
from tests.estimators.local.engine.conftest import ACCOUNT, REGION

ENDED = ("Completed", "Failed", "Stopped")


class Client:
    """An engine, and programs that are pieces of Python."""

    def __init__(self, engine: Engine, bucket: str, programs: Path) -> None:
        self.engine = engine
        self.bucket = bucket
        self._programs = programs

    def request(self, program: str, *, hosts: int = 1, **members: Any) -> dict[str, Any]:
        name = f"job-{uuid.uuid4().hex[:12]}"
        file = self._programs / f"{name}.py"
        file.write_text(textwrap.dedent(program))
        cluster = {"InstanceType": "ml.m5.large", "InstanceCount": hosts, "VolumeSizeInGB": 1}
        return {
            "ProcessingJobName": name,
            "ProcessingResources": {"ClusterConfig": cluster},
            "AppSpecification": {"ImageUri": "image", "ContainerEntrypoint": [sys.executable, str(file)]},
            "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/processing",
            **members,
        }

    def call(self, operation: str, **request: Any) -> dict[str, Any]:
        return self.engine.call(operation, request, region=REGION)

    def submit(self, program: str, **members: Any) -> str:
        request = self.request(program, **members)
        self.call("CreateProcessingJob", **request)
        return str(request["ProcessingJobName"])

    def describe(self, name: str) -> dict[str, Any]:
        return self.call("DescribeProcessingJob", ProcessingJobName=name)

    def wait(self, name: str) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while (job := self.describe(name))["ProcessingJobStatus"] not in ENDED:
            assert time.monotonic() < deadline, job
            time.sleep(0.01)
        return job

    def run(self, program: str, **members: Any) -> dict[str, Any]:
        return self.wait(self.submit(program, **members))

    def source(self, prefix: str, path: str, **members: Any) -> dict[str, Any]:
        given = {"S3Uri": f"s3://{self.bucket}/{prefix}", "LocalPath": path, "S3DataType": "S3Prefix", **members}
        return {"InputName": path.rpartition("/")[2], "S3Input": given}

    def target(self, prefix: str, path: str, mode: str = "EndOfJob") -> dict[str, Any]:
        given = {"S3Uri": f"s3://{self.bucket}/{prefix}", "LocalPath": path, "S3UploadMode": mode}
        return {"OutputName": path.rpartition("/")[2], "S3Output": given}


@pytest.fixture
def processing(engine: Engine, bucket: str, tmp_path: Path) -> Client:
    return Client(engine, bucket, tmp_path)


@pytest.fixture
def said(logs: Any) -> Callable[[str], list[str]]:
    """All lines of a processing job; by its streams, whose names begin with the host's."""

    def read(job: str) -> list[str]:
        events = logs.filter_log_events(
            logGroupName="/aws/sagemaker/ProcessingJobs", logStreamNamePrefix=f"{job}/algo-"
        )["events"]
        return [event["message"] for event in events]

    return read
