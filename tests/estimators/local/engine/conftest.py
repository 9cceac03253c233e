"""An S3 and a CloudWatch Logs in this process, and engines that use them."""

from __future__ import annotations

import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from estimators.local.engine import Engine, Platform
from estimators.local.executors import ProcessExecutor

REGION = "us-east-1"
ACCOUNT = "123456789012"


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(scope="session")
def clients(endpoint: str) -> Callable[[str], Any]:
    session = boto3.Session(aws_access_key_id="key", aws_secret_access_key="secret", region_name=REGION)
    made: dict[str, Any] = {}
    lock = threading.Lock()

    def client(service: str) -> Any:
        with lock:
            return made.setdefault(service, session.client(service, endpoint_url=endpoint))

    return client


@pytest.fixture
def s3(clients: Callable[[str], Any]) -> Any:
    return clients("s3")


@pytest.fixture
def logs(clients: Callable[[str], Any]) -> Any:
    return clients("logs")


@pytest.fixture
def bucket(s3: Any) -> str:
    name = f"bucket-{uuid.uuid4().hex}"
    s3.create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def executor() -> ProcessExecutor:
    return ProcessExecutor()


@pytest.fixture
def start_engine(
    tmp_path: Path, s3: Any, logs: Any, clients: Callable[[str], Any], executor: ProcessExecutor
) -> Iterator[Callable[..., Engine]]:
    engines = []

    def start(**parameters: Any) -> Engine:
        defaults = {
            "directory": tmp_path / f"jobs-{len(engines)}",
            "rescue": tmp_path,
            "s3": s3,
            "logs": logs,
            "cloudwatch": clients("cloudwatch"),
            "executor": executor,
            "container_environment": {},
            "region": "us-east-1",
            "grace_seconds": 10,
            "sync_seconds": 0.05,
        }
        engines.append(Engine(Platform(**(defaults | parameters)), account_id=ACCOUNT))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


@pytest.fixture
def engine(start_engine: Callable[..., Engine]) -> Engine:
    return start_engine()


class Client:
    """The engine as boto3 would show it, with waits."""

    def __init__(self, engine: Engine, bucket: str, programs: Path) -> None:
        self.engine = engine
        self.bucket = bucket
        self._programs = programs

    def request(self, program: str = "", **members: Any) -> dict[str, Any]:
        """A request whose container program is a piece of Python."""
        name = f"job-{uuid.uuid4().hex[:12]}"
        file = self._programs / f"{name}.py"
        file.write_text(textwrap.dedent(program))
        return {
            "TrainingJobName": name,
            "AlgorithmSpecification": {
                "TrainingImage": "image",
                "TrainingInputMode": "File",
                "ContainerEntrypoint": [sys.executable, str(file)],
            },
            "RoleArn": f"arn:aws:iam::{ACCOUNT}:role/training",
            "OutputDataConfig": {"S3OutputPath": f"s3://{self.bucket}/output"},
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
            "StoppingCondition": {"MaxRuntimeInSeconds": 100},
            **members,
        }

    def create(self, request: dict[str, Any]) -> str:
        self.call("CreateTrainingJob", **request)
        return str(request["TrainingJobName"])

    def submit(self, program: str = "", **members: Any) -> str:
        return self.create(self.request(program, **members))

    def run(self, program: str = "", **members: Any) -> dict[str, Any]:
        return self.wait(self.submit(program, **members))

    def describe(self, name: str) -> dict[str, Any]:
        return self.call("DescribeTrainingJob", TrainingJobName=name)

    def stop(self, name: str) -> None:
        self.call("StopTrainingJob", TrainingJobName=name)

    def call(self, operation: str, **request: Any) -> dict[str, Any]:
        return self.engine.call(operation, request, region=REGION)

    def wait(self, name: str, until: Callable[[dict[str, Any]], bool] | None = None) -> dict[str, Any]:
        until = until or (lambda job: job["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"))
        deadline = time.monotonic() + 60
        while not until(job := self.describe(name)):
            assert time.monotonic() < deadline, job
            time.sleep(0.01)
        return job

    def wait_for(self, name: str, secondary_status: str) -> dict[str, Any]:
        return self.wait(name, lambda job: job["SecondaryStatus"] == secondary_status)

    @staticmethod
    def path_of(job: dict[str, Any]) -> list[str]:
        """The secondary statuses that the job went through."""
        return [transition["Status"] for transition in job["SecondaryStatusTransitions"]]


@pytest.fixture
def client_of(bucket: str, tmp_path: Path) -> Callable[[Engine], Client]:
    return lambda engine: Client(engine, bucket, tmp_path)


@pytest.fixture
def client(client_of: Callable[[Engine], Client], engine: Engine) -> Client:
    return client_of(engine)


@pytest.fixture
def lines(logs: Any) -> Callable[..., list[str]]:
    """All lines of one host, over all its streams."""

    def read(job: str, host: str = "algo-1") -> list[str]:
        group = "/aws/sagemaker/TrainingJobs"
        try:
            streams = logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=f"{job}/{host}-")["logStreams"]
        except logs.exceptions.ResourceNotFoundException:
            return []  # no job has run yet
        events: list[dict[str, Any]] = []
        for stream in streams:
            events += logs.get_log_events(
                logGroupName=group, logStreamName=stream["logStreamName"], startFromHead=True
            )["events"]
        return [event["message"] for event in events]

    return read


@pytest.fixture
def files_in(s3: Any) -> Callable[[str, str], dict[str, bytes]]:
    """Every object below a prefix, by its key in it."""

    def read(bucket: str, prefix: str) -> dict[str, bytes]:
        listed = s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])
        return {
            item["Key"].removeprefix(prefix): s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            for item in listed
        }

    return read
