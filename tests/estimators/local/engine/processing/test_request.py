"""Which processing jobs are refused, and what is said to do instead."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.local.engine import ApiError, Engine
from estimators.local.engine.processing.request import ProcessingRequest
from estimators.local.executors import ProcessExecutor
from tests.estimators.local.engine.conftest import REGION

PATH = "/opt/ml/processing/a"
SOURCE = {"S3Uri": "s3://bucket/in", "LocalPath": PATH, "S3DataType": "S3Prefix"}
TARGET = {"S3Uri": "s3://bucket/out", "LocalPath": "/opt/ml/processing/out", "S3UploadMode": "EndOfJob"}
CLUSTER = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
REQUEST = {
    "ProcessingJobName": "job",
    "ProcessingResources": {"ClusterConfig": CLUSTER},
    "AppSpecification": {"ImageUri": "image", "ContainerEntrypoint": ["true"]},
    "RoleArn": "arn:aws:iam::123456789012:role/processing",
}


def given(**members: Any) -> dict[str, Any]:
    return {"ProcessingInputs": [{"InputName": "a", "S3Input": {**SOURCE, **members}}]}


def left(**members: Any) -> dict[str, Any]:
    return {"ProcessingOutputConfig": {"Outputs": [{"OutputName": "out", "S3Output": {**TARGET, **members}}]}}


def cluster(**members: Any) -> dict[str, Any]:
    return {"ProcessingResources": {"ClusterConfig": {"VolumeSizeInGB": 1, **members}}}


ATHENA = {
    "Catalog": "c",
    "Database": "d",
    "QueryString": "select 1",
    "OutputS3Uri": "s3://bucket/athena",
    "OutputFormat": "PARQUET",
}


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (given(S3InputMode="Pipe"), "Input a: S3InputMode Pipe is not offered by the local platform; use File"),
        (given(S3CompressionType="Gzip"), "Gzip needs S3InputMode Pipe; use None"),
        (given(S3Uri="https://bucket/in"), "Input a: S3Uri: 'https://bucket/in' is not of the form s3://"),
        (given(LocalPath="/opt/ml/model"), "Input a: LocalPath is '/opt/ml/model'; give a directory below"),
        (given(LocalPath="/opt/ml/processing/../model"), "give a directory below /opt/ml/processing"),
        (given(LocalPath="/opt/ml/processing"), "give a directory below /opt/ml/processing"),
        (
            {"ProcessingInputs": [{"InputName": name, "S3Input": SOURCE} for name in ("a", "b")]},
            f"The LocalPath {PATH} is given to several inputs",
        ),
        (given() | left(LocalPath=f"{PATH}/"), "or to an input and an output"),
        (
            {"ProcessingInputs": [{"InputName": "a", "DatasetDefinition": {"AthenaDatasetDefinition": ATHENA}}]},
            r"ProcessingInputs\.DatasetDefinition is not offered .* put the result of the query into S3",
        ),
        ({"ProcessingInputs": [{"InputName": "a"}]}, "Input a has no source; give an S3Input"),
        ({"ProcessingOutputConfig": {"Outputs": [{"OutputName": "o"}]}}, "Output o has no place; give an S3Output"),
        (
            {
                "ProcessingOutputConfig": {
                    "Outputs": [{"OutputName": "o", "FeatureStoreOutput": {"FeatureGroupName": "f"}}]
                }
            },
            "FeatureStoreOutput is not offered by the local platform; write files",
        ),
        (left(LocalPath="/tmp/out"), "Output out: LocalPath is '/tmp/out'; give a directory below"),
        (left(LocalPath="/opt/ml/processing/" + "é" * 200), "a name in it has at most 255 bytes"),
        (left(LocalPath="/opt/ml/processing/\ud800"), "which is not UTF-8"),
        (cluster(InstancePreferences=[{"InstanceType": "ml.m5.large"}]), "InstancePreferences is not offered"),
        (cluster(), "ClusterConfig has no InstanceType and no InstanceCount; give both"),
        (given(S3Uri="nowhere"), "failed to satisfy constraint"),
    ],
)
def test_what_is_not_done_is_refused_with_what_to_do(members: dict[str, Any], said: str) -> None:
    with pytest.raises(ApiError, match=said) as refused:
        ProcessingRequest.parse({**REQUEST, **members})
    assert (refused.value.code, refused.value.status) == ("ValidationException", 400)


def test_what_only_an_image_or_opt_ml_can_give_is_refused_without_them(start_engine: Any, engine: Engine) -> None:
    application = {"AppSpecification": {"ImageUri": "image"}}
    with pytest.raises(ApiError, match="ContainerEntrypoint is missing, and no image is run here"):
        engine.call("CreateProcessingJob", {**REQUEST, **application}, region=REGION)
    bare = start_engine(executor=ProcessExecutor(isolated=False))
    with pytest.raises(ApiError, match="needs /opt/ml, which it does not have here, because user namespaces"):
        bare.call("CreateProcessingJob", dict(REQUEST), region=REGION)
    assert bare.call("ListProcessingJobs", {}, region=REGION) == {"ProcessingJobSummaries": []}
