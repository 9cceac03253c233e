import hashlib
from datetime import datetime, timedelta, timezone

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from estimators.local.api.signature import KeyPair, Request, SignatureError, verify

KEYS = KeyPair(access_key="AKEXAMPLE", secret_key="a secret")
HOST = "127.0.0.1:4242"


def digest(body: bytes):
    return hashlib.sha256(body).hexdigest


def signed(
    *, service="sagemaker", path="/", query="", body=b"{}", headers=None, method="POST", signer=None, keys=KEYS
) -> Request:
    """A request as botocore signs it."""
    url = f"http://{HOST}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method=method, url=url, data=body, headers={"X-Amz-Target": "SageMaker.X", **(headers or {})})
    signer = signer or (S3SigV4Auth if service == "s3" else SigV4Auth)
    signer(Credentials(keys.access_key, keys.secret_key), service, "eu-west-1").add_auth(request)
    sent = {name.lower(): value for name, value in request.headers.items()} | {"host": HOST}
    path, _, query = request.url.removeprefix(f"http://{HOST}").partition("?")
    return Request(method=method, path=path, query=query, headers=sent, body_sha256=digest(body))


def altered(request: Request, *, drop: str | None = None, headers: dict[str, str] | None = None, **changes) -> Request:
    kept = {name: value for name, value in request.headers.items() if name != drop}
    fields = {name: getattr(request, name) for name in ("method", "path", "query", "body_sha256")}
    return Request(**{**fields, **changes}, headers={**kept, **(headers or {})})


def test_accepts_what_botocore_signs_and_tells_the_region():
    assert verify(signed(), KEYS).region == "eu-west-1"


@pytest.mark.parametrize("path", ["/", "/bucket/key", "/bucket/a%20b%2Bc/%C3%A9", "/bucket/a//b/../c"])
@pytest.mark.parametrize("query", ["", "list-type=2&prefix=a%2Fb&delimiter=", "uploads", "b=2&a=1&a=0"])
def test_accepts_s3_paths_and_queries(path, query):
    verify(signed(service="s3", path=path, query=query, method="PUT"), KEYS)


@pytest.mark.parametrize("path", ["/", "/2015-03-31/functions/f%3A1/invocations"])
def test_accepts_the_paths_of_rest_services(path):
    verify(signed(service="lambda", path=path), KEYS)


@given(
    key=st.text(st.characters(codec="utf-8", exclude_characters="/."), min_size=1, max_size=20),
    value=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20),
    body=st.binary(max_size=40),
)
def test_agrees_with_botocore_on_any_key_header_and_body(key, value, body):
    from urllib.parse import quote

    path = "/bucket/" + quote(key, safe="-_.~")
    verify(signed(service="s3", path=path, headers={"x-amz-meta-a": value}, body=body, method="PUT"), KEYS)


def test_accepts_presigned_urls_of_s3():
    verify(signed(service="s3", method="GET", path="/b/k", body=b"", headers={}, signer=presign(60)), KEYS)


def test_says_how_to_sign_a_url_that_has_an_older_signature():
    request = altered(signed(service="s3"), drop="authorization", query="AWSAccessKeyId=AK&Signature=a&Expires=1")
    with pytest.raises(
        SignatureError, match=r"AWS4-HMAC-SHA256\. Give the client .* Config\(signature_version='s3v4'\)"
    ):
        verify(request, KEYS)


def presign(seconds):
    return lambda credentials, service, region: S3SigV4QueryAuth(credentials, service, region, expires=seconds)


def test_refuses_a_presigned_request_to_another_service():
    with pytest.raises(SignatureError, match="Only requests to S3"):
        verify(signed(service="sts", method="GET", body=b"", signer=presign(60)), KEYS)


def test_refuses_a_presigned_url_that_has_expired():
    request = signed(service="s3", method="GET", body=b"", signer=presign(60))
    verify(request, KEYS, now=datetime.now(timezone.utc) + timedelta(seconds=50))
    with pytest.raises(SignatureError) as caught:
        verify(request, KEYS, now=datetime.now(timezone.utc) + timedelta(seconds=70))
    assert caught.value.code == "RequestExpired"


@pytest.mark.parametrize("minutes", [-16, 16])
def test_refuses_a_signature_of_another_time(minutes):
    now = datetime.now(timezone.utc)
    verify(signed(), KEYS, now=now + timedelta(minutes=minutes * 0.9))
    with pytest.raises(SignatureError) as caught:
        verify(signed(), KEYS, now=now + timedelta(minutes=minutes))
    assert caught.value.code == "RequestExpired"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"method": "PUT"}, "SignatureDoesNotMatch"),
        ({"path": "/other"}, "SignatureDoesNotMatch"),
        ({"query": "a=1"}, "SignatureDoesNotMatch"),
        ({"body_sha256": digest(b"[]")}, "SignatureDoesNotMatch"),
        ({"headers": {"x-amz-target": "SageMaker.Y"}}, "SignatureDoesNotMatch"),
        ({"headers": {"x-amz-new": "not signed"}}, "SignatureDoesNotMatch"),
        ({"headers": {"host": "127.0.0.1:1"}}, "SignatureDoesNotMatch"),
        ({"drop": "x-amz-target"}, "SignatureDoesNotMatch"),
        ({"drop": "x-amz-date"}, "IncompleteSignature"),
        ({"drop": "authorization"}, "MissingAuthenticationToken"),
        ({"headers": {"authorization": "Basic YTpi"}}, "MissingAuthenticationToken"),
        ({"headers": {"authorization": "AWS4-HMAC-SHA256 Credential=a"}}, "IncompleteSignature"),
    ],
)
def test_refuses_an_altered_request(change, code):
    with pytest.raises(SignatureError) as caught:
        verify(altered(signed(), **change), KEYS)
    assert caught.value.code == code


def test_refuses_an_altered_body_of_s3():
    with pytest.raises(SignatureError) as caught:
        verify(altered(signed(service="s3", method="PUT", body=b"one"), body_sha256=digest(b"two")), KEYS)
    assert caught.value.code == "XAmzContentSHA256Mismatch"


def test_s3_alone_may_leave_its_body_unsigned():
    unsigned = {"x-amz-content-sha256": "UNSIGNED-PAYLOAD"}

    class Signer(SigV4Auth):
        def payload(self, request):
            return "UNSIGNED-PAYLOAD"

    verify(signed(service="s3", body=b"x", headers=unsigned, signer=PlainS3), KEYS)
    with pytest.raises(SignatureError, match="not supported"):
        verify(signed(service="sagemaker", headers=unsigned, signer=Signer), KEYS)


class PlainS3(S3SigV4Auth):
    """Signs as over https: the body's hash is left out."""

    def payload(self, request):
        return "UNSIGNED-PAYLOAD"


def test_refuses_a_wrong_key_and_a_wrong_secret():
    with pytest.raises(SignatureError) as caught:
        verify(signed(keys=KeyPair(access_key="OTHER", secret_key=KEYS.secret_key)), KEYS)
    assert caught.value.code == "InvalidClientTokenId"
    assert str(caught.value) == "The access key is not the one that this server gave out."
    with pytest.raises(SignatureError) as caught:
        verify(signed(keys=KeyPair(access_key=KEYS.access_key, secret_key="guess")), KEYS)
    assert caught.value.code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("service", ["sagemaker", "s3"])
def test_reads_no_body_before_the_access_key_is_right(service):
    wrong = signed(service=service, keys=KeyPair(access_key="OTHER", secret_key="x"))
    with pytest.raises(SignatureError, match="access key"):
        verify(altered(wrong, body_sha256=unread), KEYS)


def test_reads_no_body_of_s3_before_the_whole_signature_is_right():
    wrong = signed(service="s3", keys=KeyPair(access_key=KEYS.access_key, secret_key="guess"))
    with pytest.raises(SignatureError) as caught:
        verify(altered(wrong, body_sha256=unread), KEYS)
    assert caught.value.code == "SignatureDoesNotMatch"


def unread() -> str:
    raise AssertionError("read")


def test_keys_are_random_and_the_secret_is_not_printed():
    first, second = KeyPair.random(), KeyPair.random()
    assert first.access_key != second.access_key and first.secret_key != second.secret_key
    assert first.secret_key not in repr(first)
