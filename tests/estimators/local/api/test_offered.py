"""What is offered, and what is said of the rest."""

from __future__ import annotations

import re
from pathlib import Path

import boto3
import pytest

from estimators.local.api.offered import OFFERS, require_offered
from estimators.local.engine import ApiError, Engine, Platform
from estimators.local.executors import ProcessExecutor
from estimators.service_model import service_model

DOCS = Path(__file__).parents[4] / "docs" / "reference" / "local-platform.md"


def test_the_page_lists_what_is_offered() -> None:
    section = DOCS.read_text().partition("## Supported operations")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert rows[0][0] == "about"
    assert rows[1][0] == "S3"
    assert rows[2:] == [(offer.subject, ", ".join(offer.operations)) for offer in OFFERS]


def test_what_the_engine_answers_is_offered(tmp_path: Path) -> None:
    session = boto3.Session(aws_access_key_id="key", aws_secret_access_key="secret", region_name="us-east-1")
    platform = Platform(
        directory=tmp_path,
        rescue=tmp_path,
        s3=session.client("s3"),
        logs=session.client("logs"),
        cloudwatch=session.client("cloudwatch"),
        executor=ProcessExecutor(),
        container_environment={},
        region="us-east-1",
    )
    for operation in Engine(platform, account_id="123456789012").operations:
        require_offered("sagemaker", operation)


def test_no_operation_of_sagemaker_is_misspelt() -> None:
    offered = {operation for offer in OFFERS if offer.service == "sagemaker" for operation in offer.operations}
    assert offered - set(service_model().operation_names) == {"BatchPutMetrics"}  # of sagemaker-metrics


@pytest.mark.parametrize(
    ("service", "operation", "said"),
    [
        ("sagemaker", "CreateTransformJob", "predict in a training job"),
        ("sagemaker", "CreateAutoMLJob", "start a training job for each candidate"),
        ("sagemaker", "DescribeEndpoint", r"load model\.tar\.gz"),
        ("sagemaker", "StartPipelineExecution", "one after the other"),
        ("sagemaker", "CreateArtifact", r"log_file\(\)"),
        ("sagemaker", "AddAssociation", r"log_artifact\(\)"),
        ("sagemaker", "CreateDomain", "use AWS for it"),
        ("sts", "AssumeRole", "use AWS for it"),
        ("dynamodb", "PutItem", "endpoint_url"),
    ],
)
def test_a_refusal_names_the_operation_and_says_what_to_do(service: str, operation: str, said: str) -> None:
    with pytest.raises(ApiError, match=rf"{operation} .*{said}") as error:
        require_offered(service, operation)
    assert (error.value.code, error.value.status) == ("UnsupportedOperation", 400)
