"""What a plan says of a job's resources is what `fit` sends."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from typing import Any

import pytest


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"output_path": "s3://jobs/models/a"},
        {"code_location": "s3://jobs/code"},
        {"code_location": "s3://jobs/code/", "output_path": "s3://jobs"},
    ],
    ids=str,
)
def test_the_places_are_those_of_the_request(build: Any, requests: list[dict[str, Any]], parameters: Any) -> None:
    estimator = build(checkpoint_s3_uri="s3://jobs/run-7", **parameters)
    planned = estimator.plan({"training": "s3://jobs/data"}, job_name="a-1").resources
    estimator.fit({"training": "s3://jobs/data"}, job_name="a-1", wait=False)
    (sent,) = requests
    assert fnmatch(json.loads(sent["HyperParameters"]["sagemaker_submit_directory"]), planned.code)
    assert planned.output == f"{sent['OutputDataConfig']['S3OutputPath'].rstrip('/')}/a-1"
    assert [channel.place for channel in planned.channels] == ["s3://jobs/data"]
    assert planned.checkpoints == sent["CheckpointConfig"]["S3Uri"]
    assert planned.image == sent["AlgorithmSpecification"]["TrainingImage"]


def test_the_code_of_an_isolated_job_is_no_channel_of_data(build: Any) -> None:
    plan = build(enable_network_isolation=True).plan({"training": "s3://jobs/data"})
    assert [channel.name for channel in plan.resources.channels] == ["training"]
    assert "network: none in the containers" in str(plan)


def test_a_plan_says_all_of_a_job(build: Any) -> None:
    estimator = build(
        instance_count=2,
        distribution={"mpi": {"enabled": True, "processes_per_host": 4}},
        use_spot_instances=True,
        max_run=3600,
        max_wait=7200,
        checkpoint_s3_uri="s3://jobs/run-7",
        volume_size=100,
        subnets=["subnet-1"],
        security_group_ids=["sg-1"],
        encrypt_inter_container_traffic=True,
    )
    runtime = "".join(f"  {label}: {value}\n" for label, value in estimator.plan().resources.runtime.lines())
    assert str(estimator.plan({"training": "s3://jobs/data"})) == (
        "2 × ml.g5.xlarge, mpirun, 4 processes on each, 8 in all\n"
        f"{runtime}"
        "  runs: at most 1 h, 2 h with waiting for spot instances\n"
        "  code: s3://jobs/source/*/sourcedir.tar.gz\n"
        "  channel training: s3://jobs/data (File)\n"
        "  checkpoints: s3://jobs/run-7\n"
        "  output: s3://jobs/pytorch-training-*\n"
        "  volume: 100 GB a host\n"
        "  network: open, VPC with subnet-1 and sg-1, traffic between hosts encrypted"
    )


def test_the_own_bucket_of_the_sdk_is_that_of_the_roles_account(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    known = build(sagemaker_session=None).plan().resources
    assert known.output.startswith("s3://sagemaker-eu-west-1-123456789012/")
    named = build(sagemaker_session=None, role="SageMaker").plan().resources
    assert named.output.startswith("s3://sagemaker-eu-west-1-*/")
    assert (named.account, named.role) == ("*", "arn:aws:iam::*:role/SageMaker")


def test_a_job_with_errors_has_none(build: Any) -> None:
    assert build(max_run=0).plan().resources is None
