"""What a job reads must be there, and so must the buckets that it writes to, before anything is uploaded for it."""

from __future__ import annotations

from typing import Any

import pytest

from estimators import Estimator
from estimators.errors import EstimatorError

ROLE = "arn:aws:iam::123456789012:role/SageMaker"


def fit(session: Any, script: str, inputs: Any = None, **parameters: Any) -> None:
    common = {"role": ROLE, "instance_type": "ml.m5.xlarge", "sagemaker_session": session}
    Estimator(script, **{**common, **parameters}).fit(inputs, wait=False)


def of_manifest(uri: str) -> Any:
    from sagemaker.inputs import TrainingInput

    return {"train": TrainingInput(uri, s3_data_type="ManifestFile")}


@pytest.mark.parametrize(
    ("inputs", "parameters", "said"),
    [
        ("s3://jobs/dta", {}, "inputs['training']: s3://jobs/dta: there are no objects. Upload it"),
        ({"train": "s3://data/train", "test": "s3://dat/test"}, {}, "inputs['test']: there is no bucket dat. Correct"),
        (lambda: of_manifest("s3://data/trai"), {}, "inputs['train']: s3://data/trai: there is no such object."),
        (
            None,
            {"model_uri": "s3://jobs/new/model.tar.gz"},
            "model_uri: s3://jobs/new/model.tar.gz: there are no objects",
        ),
        ("s3://my jobs/data", {}, "inputs['training']: 's3://my jobs/data' is no place in S3"),
        ("s3://jobs/\ud800", {}, "inputs['training']: 's3://jobs/\\ud800' is no place in S3"),
        (
            None,
            {"output_path": "s3://my jobs/out"},
            "output_path: 's3://my jobs/out' is no place in S3: no bucket or no key has such a name. Correct the URI.",
        ),
        (None, {"checkpoint_s3_uri": "s3://job/run"}, "checkpoint_s3_uri: there is no bucket job. Create it"),
        (None, {"output_path": "s3://job/out"}, "output_path: there is no bucket job. Create it"),
        (None, {"code_location": "s3://job/code"}, "code_location: there is no bucket job. Create it"),
        (
            None,
            {"source_dir": "s3://jobs/data/code.tar.gz", "script": "train.py"},
            "source_dir: s3://jobs/data/code.tar.gz: there are no objects",
        ),
    ],
)
def test_what_is_not_there_is_said_before_anything_is_uploaded(
    inputs: Any, parameters: Any, said: str, script: str, sagemaker_session: Any, requests: list[Any]
) -> None:
    before = sagemaker_session.list_s3_files("jobs", "")
    with pytest.raises(EstimatorError) as refused:
        fit(sagemaker_session, inputs=inputs() if callable(inputs) else inputs, **{"script": script, **parameters})
    assert said in str(refused.value)
    assert len(refused.value.problems) == 1
    assert (requests, sagemaker_session.list_s3_files("jobs", "")) == ([], before)


@pytest.mark.parametrize(
    ("inputs", "parameters"),
    [
        ("s3://data", {}),
        ("s3://data/tr", {}),
        ("s3://arn:aws:s3:us-east-1:123456789012:accesspoint/mine/data", {}),
        (None, {"checkpoint_s3_uri": "s3://sagemaker-us-east-1-123456789012/run"}),  # the SDK makes it
        (None, {"checkpoint_s3_uri": "s3://jobs/nothing-yet", "output_path": "s3://data"}),
    ],
    ids=str,
)
def test_what_is_there_or_will_be_is_sent(
    inputs: Any, parameters: Any, script: str, sagemaker_session: Any, requests: list[Any]
) -> None:
    fit(sagemaker_session, script, inputs, **parameters)
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("operation", "inputs", "parameters"),
    [
        ("ListObjectsV2", "s3://data/none", {}),
        ("HeadBucket", None, {"checkpoint_s3_uri": "s3://nowhere/run"}),
    ],
)
def test_what_s3_tells_nobody_is_no_mistake(
    operation: str, inputs: Any, parameters: Any, script: str, sagemaker_session: Any, requests: list[Any]
) -> None:
    """The job's role may read what whoever sends it may not."""
    from botocore.awsrequest import AWSResponse

    def deny(**_: Any) -> Any:
        return AWSResponse("", 403, {}, None), {"Error": {"Code": "AccessDenied", "Message": "no"}}

    events, name = sagemaker_session.s3_client.meta.events, f"before-call.s3.{operation}"
    events.register(name, deny)
    try:
        fit(sagemaker_session, script, inputs, **parameters)
    finally:
        events.unregister(name, deny)
    assert len(requests) == 1


@pytest.mark.parametrize(
    ("uri", "others", "remedy"),
    [
        ("s3://prefixes/data/train", "data/train.csv, data/train-holdout/", "Give s3://prefixes/data/train/ for"),
        ("s3://prefixes/one.csv", "one.csv.old", "Give the object a prefix of its own"),
        ("s3://prefixes/data/train/", None, None),
        ("s3://prefixes/data/tra", None, None),  # no directory: what begins so is what is meant
        ("s3://prefixes/data", None, None),
    ],
)
def test_a_prefix_that_brings_other_directories_is_warned_of(
    uri: str,
    others: str | None,
    remedy: str | None,
    script: str,
    sagemaker_session: Any,
    requests: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    s3 = sagemaker_session.boto_session.client("s3")
    s3.create_bucket(Bucket="prefixes")
    for key in ("data/train/a", "data/train-holdout/a", "data/train.csv", "one.csv", "one.csv.old"):
        s3.put_object(Bucket="prefixes", Key=key)
    fit(sagemaker_session, script, {"train": uri})
    assert len(requests) == 1
    told = [record.message for record in caplog.records if "brings every key" in record.message]
    if others is None:
        assert told == []
    else:
        (message,) = told
        assert message.startswith(f"inputs['train']: {uri} brings every key that begins with it, also ")
        assert all(f"s3://prefixes/{name}" in message for name in others.split(", "))
        assert str(remedy) in message


@pytest.mark.parametrize(
    ("inputs", "warned"), [("s3://data/run7", True), ("s3://data/run7/", False), ("s3://dat", False)]
)
def test_checkpoints_that_begin_with_a_channel_are_read_as_data(
    inputs: str, warned: bool, script: str, sagemaker_session: Any
) -> None:
    common = {"role": ROLE, "instance_type": "ml.m5.xlarge", "sagemaker_session": sagemaker_session}
    plan = Estimator(script, checkpoint_s3_uri="s3://data/run7-ck", **common).plan(inputs)
    assert [problem.parameter for problem in plan.warnings] == ["checkpoint_s3_uri"] * warned
    if warned:
        assert "begins with inputs['training'] (s3://data/run7), which brings every key that does" in str(plan)
