"""The same code is uploaded once, and what somebody else left in its place is never taken for it."""

from __future__ import annotations

import base64
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from estimators import Estimator
from estimators.errors import EstimatorError
from estimators.request import code as request_code

ROLE = "arn:aws:iam::123456789012:role/SageMaker"
ARCHIVE, DIGEST = b"the code", "0f" * 32
CHECKSUM = base64.b64encode(bytes.fromhex(DIGEST)).decode()


@pytest.fixture
def uploads(sagemaker_session: Any) -> Iterator[list[dict[str, Any]]]:
    """Each PutObject, as it was sent."""
    sent: list[dict[str, Any]] = []

    def record(params: dict[str, Any], **_: Any) -> None:
        sent.append({name: value for name, value in params.items() if name != "Body"})

    events, name = sagemaker_session.s3_client.meta.events, "provide-client-params.s3.PutObject"
    events.register(name, record)
    yield sent
    events.unregister(name, record)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    directory = tmp_path / "with dependencies"
    for path in (directory / "train.py", directory / "library" / "layers.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"import smddp\n\nprint({str(tmp_path)!r})\n")  # no other test has the same
    return directory


@pytest.mark.parametrize("place", [{}, {"code_location": "s3://jobs/code/"}, {"output_path": "s3://jobs/models"}])
@pytest.mark.slow
def test_the_same_code_is_uploaded_once(
    code: Path,
    place: dict[str, str],
    sagemaker_session: Any,
    uploads: list[Any],
    requests: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    library = code / "library"

    def fit() -> str:
        Estimator(
            "train.py",
            source_dir=code,
            dependencies=[library],
            role=ROLE,
            instance_type="ml.m5.xlarge",
            sagemaker_session=sagemaker_session,
            **place,
        ).fit(wait=False)
        return str(json.loads(requests[-1]["HyperParameters"]["sagemaker_submit_directory"]))

    first = fit()
    assert len(uploads) == 1
    assert first.startswith(f"{place.get('code_location', 's3://jobs/')}source/")
    assert "code unchanged" not in caplog.text
    assert fit() == first
    assert len(uploads) == 1
    assert f"code unchanged, already at {first}" in caplog.text
    (library / "layers.py").write_text("changed = True\n")
    assert fit() != first
    assert len(uploads) == 2


@pytest.mark.slow
def test_what_lies_there_and_is_other_code_is_replaced(
    code: Path, sagemaker_session: Any, uploads: list[Any], requests: list[Any]
) -> None:
    job = Estimator(code / "train.py", role=ROLE, instance_type="ml.m5.xlarge", sagemaker_session=sagemaker_session)
    job.fit(wait=False)
    (put,) = uploads
    place = {"Bucket": put["Bucket"], "Key": put["Key"]}
    right = sagemaker_session.s3_client.get_object(**place)["Body"].read()
    sagemaker_session.s3_resource.Object(put["Bucket"], put["Key"]).put(Body=bytes(len(right)))  # of the same size
    job.fit(wait=False)
    assert len(uploads) == 2
    assert sagemaker_session.s3_client.get_object(**place)["Body"].read() == right


@pytest.mark.parametrize(
    ("found", "uploads_it"),
    [
        ({"ContentLength": len(ARCHIVE), "ChecksumSHA256": CHECKSUM}, False),
        ({"ContentLength": len(ARCHIVE), "ChecksumSHA256": base64.b64encode(bytes(32)).decode()}, True),
        ({"ContentLength": len(ARCHIVE) + 1, "ChecksumSHA256": CHECKSUM}, True),
        ("404", True),
        ("403", True),
    ],
)
def test_s3_vouches_for_what_is_there(found: Any, uploads_it: bool, sagemaker_session: Any) -> None:
    client = boto3.client("s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    name = {"Bucket": "jobs", "Key": f"source/{DIGEST}/sourcedir.tar.gz"}
    with Stubber(client) as s3, pytest.MonkeyPatch.context() as patched:
        patched.setattr(sagemaker_session, "s3_client", client)
        if isinstance(found, str):
            s3.add_client_error("head_object", found)
        else:
            s3.add_response("head_object", found, {**name, "ChecksumMode": "ENABLED"})
        if uploads_it:
            s3.add_client_error("put_object", "AccessDenied")
            with pytest.raises(
                EstimatorError, match=r"^The job was not sent: its code can't be uploaded to s3://jobs/.*AccessDenied"
            ):
                request_code.upload(io.BytesIO(ARCHIVE), DIGEST, {}, sagemaker_session)
        else:
            uri = request_code.upload(io.BytesIO(ARCHIVE), DIGEST, {}, sagemaker_session)
            assert uri == f"s3://{name['Bucket']}/{name['Key']}"
        s3.assert_no_pending_responses()


def test_code_under_another_key_is_another_object(code: Path, sagemaker_session: Any, uploads: list[Any]) -> None:
    for key in (None, "alias/one", "alias/two"):
        Estimator(
            code / "train.py",
            role=ROLE,
            instance_type="ml.m5.xlarge",
            output_kms_key=key,
            sagemaker_session=sagemaker_session,
        ).fit(wait=False)
    assert [put.get("SSEKMSKeyId") for put in uploads] == [None, "alias/one", "alias/two"]
    assert len({put["Key"] for put in uploads}) == 3


def test_code_that_s3_does_not_take_is_refused_before_it_is_sent(
    sagemaker_session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_code, "LARGEST", 3)
    with pytest.raises(
        EstimatorError, match=r"^The job was not sent: the packed code has 8 bytes; S3 takes at most 3\. Name what"
    ):
        request_code.upload(io.BytesIO(ARCHIVE), DIGEST, {}, sagemaker_session)
