"""A console over moto: 1,000 jobs, one with a log of 100,000 lines, and who asks it as a browser does."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
import urllib3
from moto import mock_aws

from estimators.console.jobs import JobSource
from estimators.console.server import Console
from estimators.log_reader import LOG_GROUP

JOBS, LINES = 1000, 100_000
HOSTILE = "\x1b]0;owned\x07\x1b[31m<script>alert(1)</script> &amp; \u202eback"
AS_SHOWN = "<script>alert(1)</script> &amp; back"  # neither colour nor title, and its letters turn no text round


@dataclass
class Client:
    """What a browser sends, and no more: a cookie that it was given, for the path that it is for."""

    origin: str
    root: str
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, path: str, method: str = "GET", **headers: str) -> urllib3.BaseHTTPResponse:
        url = f"{self.origin}{self.root}{path}"
        given = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return urllib3.request(method, url, headers=given, retries=False, redirect=False, timeout=30)

    def text(self, path: str) -> str:
        answer = self.ask(path)
        assert answer.status == 200, answer.data
        return answer.data.decode()


def entered(link: str) -> Client:
    """A client that has used the link."""
    found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)(/[\w-]+)(/open\?token=.+)", link)
    assert found
    client = Client(origin=found[1], root=found[2])
    answer = client.ask(found[3])
    assert answer.status == 200
    client.headers["Cookie"] = answer.headers["Set-Cookie"].partition(";")[0]
    return client


def request(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "TrainingJobName": name,
        "RoleArn": "arn:aws:iam::123456789012:role/SageMaker",
        "AlgorithmSpecification": {"TrainingImage": "an-image", "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "s3://jobs/out"},
        "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 300},
        **changes,
    }


def scored(step: int, score: float) -> str:
    """A line with a value of the one metric that moto gives to each job, ``test:dcg``."""
    return f"step={step} epoch=0 #quality_metric: host=algo-1, test dcg <score>={score:.4f}"


def log(logs: Any, job: str, host: str, lines: list[str]) -> None:
    names = {"logGroupName": LOG_GROUP, "logStreamName": f"{job}/{host}-1"}
    logs.create_log_stream(**names)
    now = int(time.time() * 1000)
    for start in range(0, len(lines), 10_000):
        events = [{"timestamp": now, "message": line} for line in lines[start : start + 10_000]]
        logs.put_log_events(**names, logEvents=events)


@pytest.fixture(scope="module")
def source() -> Iterator[JobSource]:
    """An account with its jobs; nothing may be changed."""
    with mock_aws():
        session = boto3.Session(region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
        source = JobSource(name="AWS · us-east-1", session=session)
        secrets = {"HyperParameters": {"lr": "0.1", "api_key": "sk-1234", "config": '{"password": "hunter2"}'}}
        source.sagemaker.create_training_job(**request("long", **secrets))
        bigger = {"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1}
        numbers = {"lr": "0.2", "max_tokens": "5"}
        source.sagemaker.create_training_job(**request("other", HyperParameters=numbers, ResourceConfig=bigger))
        # After those: moto filters the names of one page, in the order in which jobs came.
        for number in range(JOBS - 2):
            source.sagemaker.create_training_job(**request(f"many-{number:04}"))
        source.logs.create_log_group(logGroupName=LOG_GROUP)
        long = [scored(number, 1000 / number) for number in range(1, 1001)]
        long += [f"line {number} of many" for number in range(1001, LINES)]
        log(source.logs, "long", "algo-1", [*long, HOSTILE])
        log(source.logs, "other", "algo-1", [scored(1, 2.5), scored(2, 1.5)])
        yield source


@pytest.fixture(scope="module")
def console(source: JobSource) -> Iterator[Console]:
    with Console(source) as console:
        yield console


@pytest.fixture
def client(console: Console) -> Client:
    return entered(console.link)
