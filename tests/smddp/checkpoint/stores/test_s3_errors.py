from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from smddp.checkpoint.stores.s3 import S3Store
from smddp.checkpoint.stores.s3_location import ADVICE, store_error
from smddp.checkpoint.stores.store import StoreError
from smddp.storage.s3_errors import explain


def answered(code: str, status: int, message: str = "it says") -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}, "PutObject"
    )


@pytest.mark.parametrize(
    ("error", "advice", "transient"),
    [
        (answered("NoSuchBucket", 404), "create the bucket", False),
        (answered("AccessDenied", 403), "s3:PutObject", False),
        (answered("403", 403), "s3:PutObject", False),
        (answered("ExpiredToken", 400), "renew them", False),
        (answered("RequestExpired", 400), "renew them", False),
        (answered("InvalidAccessKeyId", 403), "correct the credentials", False),
        (answered("SignatureDoesNotMatch", 403), "secret key", False),
        (answered("RequestTimeTooSkewed", 403), "clock", False),
        (answered("PermanentRedirect", 301), "AWS_REGION", False),
        (answered("301", 301), "AWS_REGION", False),
        (answered("AuthorizationHeaderMalformed", 400), "AWS_REGION", False),
        (answered("SlowDown", 503), "save less often", True),
        (answered("503", 503), "save less often", True),
        (answered("InternalError", 500), "try again later", True),
        (answered("BadDigest", 400), "it says", True),
        (answered("Strange", 418), "it says", False),
        (NoCredentialsError(), "AWS_ACCESS_KEY_ID", False),
        (EndpointConnectionError(endpoint_url="http://127.0.0.1:1"), "AWS_ENDPOINT_URL_S3", True),
        (ReadTimeoutError(endpoint_url="http://127.0.0.1:1"), "check the network", True),
        (ParamValidationError(report="Bucket"), "AWS configuration", False),
    ],
)
def test_says_what_to_do(error: Exception, advice: str, transient: bool) -> None:
    translated = store_error(explain("could not write s3://bucket/key", error, ADVICE))
    assert str(translated).startswith("could not write s3://bucket/key: ")
    assert advice in str(translated)
    assert translated.transient is transient


@pytest.fixture
def calls() -> list[Callable[[S3Store], object]]:
    attempt = "0123456789ab-0001"
    return [
        lambda store: store.check_writable(),
        lambda store: store.steps(),
        lambda store: next(store.newest_first()),
        lambda store: store.attempts(1),
        lambda store: store.write(1, attempt, "state.json", [memoryview(b"{}")]),
        lambda store: store.commit(1, "", b"{}", replacing=None),
        lambda store: store.read_manifest(1),
        lambda store: store.size(1, attempt, "state.json"),
        lambda store: store.read_into(1, attempt, "state.json", 0, memoryview(bytearray(2))),
        lambda store: store.discard(1, attempt),
        lambda store: store.remove(1),
        lambda store: store.abort_orphans(),
    ]


def test_without_credentials_every_call_says_so(
    calls: list[Callable[[S3Store], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    store = S3Store("s3://bucket/runs")
    for call in calls:
        with pytest.raises(StoreError, match="give the job a role"):
            call(store)


def test_a_profile_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreError, match=r"ProfileNotFound.*check the AWS configuration"):
        S3Store("s3://bucket/runs").steps()


def test_a_server_that_is_not_there_is_said_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # it does not listen, and nobody else can
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{unused.getsockname()[1]}")
        store = S3Store("s3://bucket/runs", patience=1.0)
        with pytest.raises(StoreError, match="AWS_ENDPOINT_URL_S3"):
            store.steps()


@pytest.mark.seaweedfs
def test_a_missing_bucket_is_not_made(calls: list[Callable[[S3Store], object]], environ: None, s3: Any) -> None:
    store = S3Store("s3://no-such-bucket/runs")
    for call in calls[:4] + calls[4:7] + calls[9:]:
        with pytest.raises(StoreError, match="create the bucket"):
            call(store)
    assert "no-such-bucket" not in {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}


@pytest.mark.seaweedfs
def test_a_wrong_key_is_said(bucket: str, environ: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StoreError, match="secret key is wrong"):
        S3Store(f"s3://{bucket}/runs").check_writable()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAUNKNOWNUNKNOWN00")
    with pytest.raises(StoreError, match="access key is unknown"):
        S3Store(f"s3://{bucket}/runs").check_writable()
