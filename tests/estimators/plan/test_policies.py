"""The policies of a job allow what the job names, and no more."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

import boto3
import pytest
from sagemaker.debugger import DebuggerHookConfig, TensorBoardOutputConfig

from estimators import Estimator
from estimators.errors import EstimatorError

ROLE = "arn:aws:iam::123456789012:role/SageMaker"
KEY = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"


def rules(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rules of a document, by name, once IAM has taken it as a managed policy."""
    text = json.dumps(document)
    boto3.client("iam").create_policy(PolicyName=f"p-{secrets.token_hex(8)}", PolicyDocument=text)
    assert len("".join(text.split())) <= 6144  # of a managed policy, without spaces
    found = {statement["Sid"]: statement for statement in document["Statement"]}
    assert len(found) == len(document["Statement"])
    assert document["Version"] == "2012-10-17"
    for sid, statement in found.items():
        assert re.fullmatch("[A-Za-z0-9]+", sid)  # what IAM takes
        assert set(statement) <= {"Sid", "Effect", "Action", "Resource", "Condition"}
        assert all(re.fullmatch(r"[a-z0-9]+:[A-Z][A-Za-z]+", action) for action in statement["Action"])
    return found


def test_the_role_reads_its_data_and_code_and_writes_its_own_output(build: Any) -> None:
    role = rules(build().plan({"training": "s3://data/train", "test": "s3://more/"}, job_name="a-1").policies().role)
    assert set(role) == {
        *("ReadDataAndCode", "ListData", "ListData1", "WriteOutput", "AskForImage", "PullImage", "WriteLogs"),
        "WriteMetrics",
    }
    assert role["ReadDataAndCode"]["Resource"] == [
        "arn:aws:s3:::data/train*",
        "arn:aws:s3:::more/*",
        "arn:aws:s3:::jobs/source/*/sourcedir.tar.gz",
    ]
    assert role["ListData"]["Resource"] == "arn:aws:s3:::data"
    assert role["ListData"]["Condition"] == {"StringLike": {"s3:prefix": ["train*"]}}
    assert role["WriteOutput"]["Resource"] == ["arn:aws:s3:::jobs/a-1/*"]
    assert role["PullImage"]["Resource"] == "arn:aws:ecr:us-east-1:763104351884:repository/pytorch-training"
    everywhere = {action for rule in role.values() if rule["Resource"] == "*" for action in rule["Action"]}
    assert everywhere == {"ecr:GetAuthorizationToken", "cloudwatch:PutMetricData"}


def test_checkpoints_are_read_written_listed_and_deleted(build: Any) -> None:
    role = rules(build(checkpoint_s3_uri="s3://jobs/run-7/").plan().policies().role)
    assert role["KeepCheckpoints"]["Action"] == [
        *("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"),
    ]
    assert role["KeepCheckpoints"]["Resource"] == "arn:aws:s3:::jobs/run-7/*"
    assert role["ListCheckpoints"]["Condition"] == {"StringLikeIfExists": {"s3:prefix": ["run-7", "run-7/*"]}}
    assert role["FindUnfinishedUploads"]["Resource"] == "arn:aws:s3:::jobs"
    whole = rules(build(checkpoint_s3_uri="s3://kept").plan().policies().role)
    assert whole["KeepCheckpoints"]["Resource"] == "arn:aws:s3:::kept/*"
    assert whole["ListCheckpoints"]["Condition"] == {"StringLikeIfExists": {"s3:prefix": ["*"]}}


def test_what_the_tools_write_is_output_too(build: Any) -> None:
    board = TensorBoardOutputConfig(s3_output_path="s3://boards/run-7")
    hook = DebuggerHookConfig(s3_output_path="s3://tensors/")
    job = build(tensorboard_output_config=board, debugger_hook_config=hook)
    role = rules(job.plan(job_name="a-1").policies().role)
    assert role["WriteOutput"]["Resource"] == [
        *("arn:aws:s3:::jobs/a-1/*", "arn:aws:s3:::boards/run-7/*", "arn:aws:s3:::tensors/*"),
    ]


def test_a_vpc_and_keys_bring_their_own_rules(build: Any) -> None:
    secured = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"], "output_kms_key": "alias/models"}
    job = build(instance_type="ml.m5.xlarge", volume_kms_key=KEY, enable_remote_debug=True, **secured)
    policies = job.plan().policies()
    role = rules(policies.role)
    assert "ec2:CreateNetworkInterface" in role["JoinVpc"]["Action"]
    assert role["EncryptVolumes"]["Resource"] == KEY
    assert role["EncryptOutput"]["Resource"] == "arn:aws:kms:us-east-1:123456789012:key/*"
    assert role["EncryptOutput"]["Condition"] == {"ForAnyValue:StringEquals": {"kms:ResourceAliases": "alias/models"}}
    assert "ssmmessages:OpenDataChannel" in role["RemoteDebugging"]["Action"]
    assert "EncryptCode" in rules(policies.submitter)


def test_the_user_sends_the_job_with_its_role_and_code(build: Any) -> None:
    user = rules(build(tags=[{"Key": "a", "Value": "b"}]).plan(job_name="Run-7").policies().submitter)
    assert user["TrainingJob"]["Resource"] == [
        f"arn:aws:sagemaker:us-east-1:123456789012:training-job/{name}" for name in ("Run-7", "run-7")
    ]
    assert "sagemaker:AddTags" in user["TrainingJob"]["Action"]
    assert (user["PassRole"]["Resource"], user["PassRole"]["Condition"]) == (
        ROLE,
        {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}},
    )
    assert user["UploadCode"]["Resource"] == "arn:aws:s3:::jobs/source/*/sourcedir.tar.gz"
    assert user["UploadCode"]["Action"] == ["s3:GetObject", "s3:PutObject"]
    assert "MakeDefaultBucket" not in user


def test_code_on_s3_is_not_uploaded(sagemaker_session: Any) -> None:
    estimator = Estimator(
        "train.py",
        source_dir="s3://jobs/own/sourcedir.tar.gz",
        role=ROLE,
        instance_type="ml.m5.xlarge",
        sagemaker_session=sagemaker_session,
    )
    policies = estimator.plan().policies()
    assert "UploadCode" not in rules(policies.submitter)
    assert rules(policies.role)["ReadDataAndCode"]["Resource"] == ["arn:aws:s3:::jobs/own/sourcedir.tar.gz"]


def test_what_the_job_does_not_say_is_noted_and_left_open(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "cn-north-1")
    plan = build(role="Trainer", sagemaker_session=None, image_uri="registry.example/mine:1").plan()
    policies = plan.policies()
    user = rules(policies.submitter)
    assert user["FindRole"]["Resource"] == "arn:aws:iam::*:role/Trainer"
    assert user["MakeDefaultBucket"]["Resource"] == "arn:aws-cn:s3:::sagemaker-cn-north-1-*"
    assert user["TrainingJob"]["Resource"] == ["arn:aws-cn:sagemaker:cn-north-1:*:training-job/mine-*"]
    assert "PullImage" not in rules(policies.role)
    told = " ".join(policies.notes)
    for part in ("Give fit() a job_name", "the role's ARN instead", "registry.example/mine:1 is not in ECR"):
        assert part in told


def test_a_job_with_errors_has_no_policies(build: Any) -> None:
    with pytest.raises(EstimatorError, match="What the job needs is not known: it has errors"):
        build(max_run=0).plan().policies()
