"""What an Estimator sends for each of many jobs, with the SDK of this process: uploads, and CreateTrainingJob.

As a program, ``python -m tests.estimators.sdk.sent_requests JOBS ANSWERS``, it reads the jobs from a file of JSON, and
writes the answers to another.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3
import jsonschema.validators
from moto import mock_aws

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.sdk import sessions
from estimators.sdk.installed import installed
from tests.estimators.sdk.job_sets import REGIONS, built

_RECORDED = ("sagemaker.CreateTrainingJob", "s3.PutObject")
_BUCKETS = ("jobs", "elsewhere")

Sent = list[Any]


def lay_out_code() -> None:
    """Write the code that jobs may name into the current directory."""
    for name, text in {
        "code/train.py": "import layers\n",
        "code/uses_smddp.py": "import smddp\n\ntrainer.log(accuracy=1)\n",
        "library/layers.py": "",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)


def sent_for(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each job what was sent, or that it was refused, by which checks, and why."""
    package = "sagemaker" if installed() == "V2" else "sagemaker.core"
    answers = []
    with mock_aws(), _repetition_spared("sagemaker.utils" if installed() == "V2" else "sagemaker.core.common_utils"):
        made = {(region, bucket): _session(region, bucket) for region in set(REGIONS) for bucket in ("jobs", None)}
        for bucket in _BUCKETS:
            boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=bucket)
        for job in jobs:
            asked = job["session"]
            session = copy.copy(made[asked["region"], asked["bucket"]])
            session.default_bucket_prefix = asked["prefix"]
            if asked["configured"] is not None:
                members = {"SageMaker": {"TrainingJob": asked["configured"]}}
                session.sagemaker_config = {"SchemaVersion": "1.0", **members}
            answers.append(_answer(built(job["arguments"], package), built(job["calls"], package), session))
    return answers


@contextmanager
def _repetition_spared(module: str) -> Iterator[None]:
    """Let the SDK do once what it does for each job, half of the time: read endpoints, check its own schema."""
    names = import_module(module)
    with (
        patch.object(names, "_botocore_resolver", lru_cache(names._botocore_resolver)),
        patch.object(jsonschema.validators.validator_for({}), "check_schema"),
    ):
        yield


def _answer(arguments: dict[str, Any], calls: dict[str, Any], session: Any) -> dict[str, Any]:
    with _recorded(session) as sent:
        try:
            Estimator(**arguments, sagemaker_session=session).fit(**calls, wait=False)
        except EstimatorError as fault:
            return {"refused_by": sorted(each.parameter for each in fault.problems), "why": str(fault), "sent": sent}
    return {"sent": sent}


@contextmanager
def _recorded(session: Any) -> Iterator[Sent]:
    """Record what a block's clients send, without the bytes."""
    sent: Sent = []

    def record(params: dict[str, Any], model: Any, **_: Any) -> None:
        sent.append([model.name, {name: value for name, value in params.items() if name != "Body"}])

    clients = (session.sagemaker_client, session.s3_resource.meta.client)
    for client, name in zip(clients, _RECORDED, strict=True):
        client.meta.events.register(f"provide-client-params.{name}", record)
    try:
        yield sent
    finally:
        for client, name in zip(clients, _RECORDED, strict=True):
            client.meta.events.unregister(f"provide-client-params.{name}", record)


def _session(region: str, bucket: str | None) -> Any:
    return sessions.session(boto3.Session(region_name=region), default_bucket=bucket)


if __name__ == "__main__":
    lay_out_code()
    Path(sys.argv[2]).write_text(json.dumps(sent_for(json.loads(Path(sys.argv[1]).read_text()))))
