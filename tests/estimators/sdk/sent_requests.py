"""What an Estimator sends for each of many jobs, with the SDK of this process: uploads, and CreateTrainingJob.

As a program, ``python -m tests.estimators.sdk.sent_requests JOBS ANSWERS``, it reads the jobs from a file of JSON, and
writes the answers to another.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import boto3
import botocore.session
import jsonschema.validators
from botocore.awsrequest import AWSResponse

from estimators import Estimator, source_code
from estimators.checks import aws_limits
from estimators.errors import EstimatorError, Problem
from estimators.sdk import sessions
from estimators.sdk.installed import installed
from tests.estimators.sdk.job_sets import REGIONS, REPOSITORY, built

_RECORDED = frozenset({"CreateTrainingJob", "PutObject"})
_ANSWERS: dict[str, dict[str, Any]] = {
    "GetCallerIdentity": {"Account": "123456789012"},
    "ListBuckets": {"Buckets": []},
    "DescribeTrainingJob": {"TrainingJobName": "any"},
    "GetRole": {"Role": {"Arn": "arn:aws:iam::123456789012:role/Team"}},
}
"""What AWS says, where the SDK looks at it."""

Sent = list[Any]


def lay_out_code() -> None:
    """Write the code that jobs may name into the current directory, and let git clone it by the URL that they name.

    The latter is written to the file that the variable GIT_CONFIG_GLOBAL names.
    """
    for name, text in {
        "code/train.py": "import layers\n",
        "with_smddp/train.py": "import smddp\n\ntrainer.log(accuracy=1)\n",
        "library/layers.py": "",
    }.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    git = ("git", "-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    for command in (["init", "-q", "-b", "main"], ["add", "code", "library"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run([*git, *command], check=True)
    rewritten = ["--file", os.environ["GIT_CONFIG_GLOBAL"], f"url.file://{Path.cwd()}.insteadOf", REPOSITORY]
    subprocess.run(["git", "config", *rewritten], check=True)


def sent_for(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each job what was checked and sent, by V3's ModelTrainer too; or which checks refused it, and why."""
    package = "sagemaker" if installed() == "V2" else "sagemaker.core"
    answers = []
    checked: list[str] = []
    with (
        _repetition_spared("sagemaker.utils" if installed() == "V2" else "sagemaker.core.common_utils"),
        _checks_recorded(checked),
    ):
        sent: Sent = []
        made = {
            (region, bucket): _session(region, bucket, sent) for region in set(REGIONS) for bucket in ("jobs", None)
        }
        for job in jobs:
            asked = job["session"]
            session = copy.copy(made[asked["region"], asked["bucket"]])
            session.default_bucket_prefix = asked["prefix"]
            if asked["configured"] is not None:
                session.sagemaker_config = {"SchemaVersion": "1.0", "SageMaker": asked["configured"]}
            sent.clear()
            checked.clear()
            arguments, calls = built(job["arguments"], package), built(job["calls"], package)
            refused = _refused(arguments, calls, session)
            answers.append({**refused, "sent": list(sent), "checked": list(checked)})
            if package == "sagemaker.core" and not refused and job["number"] % 3 == 0:
                answers[-1]["trainer"] = _by_trainer(arguments, sent[-1][1].get("InputDataConfig", []), session, sent)
    return answers


@contextmanager
def _repetition_spared(module: str) -> Iterator[None]:
    """Let the SDK do once what it does for each job, half of the time: read endpoints, check its own schema."""
    names = import_module(module)
    with (
        patch.object(names, "_botocore_resolver", lru_cache(names._botocore_resolver)),
        patch.object(jsonschema.validators.validator_for({}), "check_schema"),
        patch.object(boto3, "client", lru_cache(boto3.client)),
        patch.object(source_code, "package_wheels", lambda *_: {}),  # pip would ask its index for them
    ):
        yield


@contextmanager
def _checks_recorded(checked: list[str]) -> Iterator[None]:
    """Append each request that is checked to `checked`, as JSON."""
    check = aws_limits.check_form

    def recording(request: Mapping[str, Any], arguments: Mapping[str, Any]) -> Iterator[Problem]:
        checked.append(json.dumps(request))
        return check(request, arguments)

    with patch.object(aws_limits, "check_form", recording):
        yield


def _refused(arguments: dict[str, Any], calls: dict[str, Any], session: Any) -> dict[str, Any]:
    try:
        Estimator(**arguments, sagemaker_session=session).fit(**calls, wait=False)
    except EstimatorError as fault:
        return {"refused_by": sorted(each.parameter for each in fault.problems), "why": str(fault)}
    return {}


def _by_trainer(
    arguments: dict[str, Any], channels: list[dict[str, Any]], session: Any, sent: Sent
) -> dict[str, Any] | str:
    """Return what ModelTrainer sends of a job with these channels, or why there is no ModelTrainer of it."""
    from sagemaker.core.shapes import Channel

    from estimators.sdk.v3.model_trainer import shape

    try:
        trainer = Estimator(**arguments, sagemaker_session=session).to_sagemaker()
    except EstimatorError as fault:
        return str(fault)
    own = {channel.channel_name for channel in trainer.input_data_config or ()}
    data = [shape(Channel, channel) for channel in channels if channel["ChannelName"] not in own]
    sent.clear()
    trainer.train(input_data_config=data, wait=False, logs=False)
    return dict(sent[-1][1])


def _session(region: str, bucket: str | None, sent: Sent) -> Any:
    """Return a session that reaches no AWS: what its clients send is noted, without the bytes, and answered here."""
    core = botocore.session.Session()
    core.set_credentials("KEY", "SECRET")

    def record(params: dict[str, Any], model: Any, **_: Any) -> None:
        if model.name in _RECORDED:
            sent.append([model.name, {name: value for name, value in params.items() if name != "Body"}])

    def answer(model: Any, params: Any, **_: Any) -> Any:
        if model.name == "HeadObject":  # no code is there yet
            return AWSResponse("", 404, {}, None), {"Error": {"Code": "404"}}
        if model.name == "ListObjectsV2":  # all data are
            return AWSResponse("", 200, {}, None), {"Contents": [{"Key": params["query_string"]["prefix"]}]}
        return AWSResponse("", 200, {}, None), _ANSWERS.get(model.name, {})

    core.register("provide-client-params", record)
    core.register("before-call", answer)
    return sessions.session(boto3.Session(botocore_session=core, region_name=region), default_bucket=bucket)


if __name__ == "__main__":
    lay_out_code()
    Path(sys.argv[2]).write_text(json.dumps(sent_for(json.loads(Path(sys.argv[1]).read_text()))))
