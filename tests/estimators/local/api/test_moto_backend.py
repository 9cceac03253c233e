"""Whatever moto does, a request is answered in AWS's form; a role's name is enough, as the SDK asks IAM for its ARN."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from estimators.local import LocalSageMaker
from estimators.local.api.guard import Guard, RequestBody
from estimators.local.api.logs import LogFilter
from estimators.local.api.moto_backend import MotoBackend
from estimators.local.api.protocols import ApiRequest
from estimators.local.api.server import HEAD, Api
from estimators.local.api.signature import KeyPair, Request
from estimators.local.chaos import Chaos
from estimators.local.engine import ApiError


class OpenGuard(Guard):
    """Lets every request pass."""

    def admit(self, head: Request, path: str, body: RequestBody) -> str:
        body.read()
        return "us-east-1"


def ask(path: Path, moto: Any, service: str, body: io.BytesIO | None, **more: Any) -> tuple[str, bytes]:
    """The status and the content that a client gets of an API with this moto."""
    guard = OpenGuard(keys=KeyPair.random(), address=("127.0.0.1", 1))
    api = Api(guard, engine=None, moto=moto, chaos=Chaos(), body_directory=path)  # type: ignore[arg-type]  # not asked
    claim = f"AWS4-HMAC-SHA256 Credential=a/20260101/us-east-1/{service}/aws4_request, SignedHeaders=host, Signature=a"
    head = Request(method="GET", path="/", query="", headers={"authorization": claim}, body_sha256=str)
    answered: list[str] = []
    environ = {HEAD: head, "wsgi.input": body, "PATH_INFO": "/", "REQUEST_METHOD": "GET", **more}
    content = b"".join(api(environ, lambda status, _: answered.append(status)))  # type: ignore[arg-type,func-returns-value]
    return answered[0], content


def test_a_request_that_moto_can_not_answer_is_refused_in_awss_form(tmp_path: Path) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a bug")

    form = "application/x-www-form-urlencoded"  # what curl calls any body
    status, content = ask(tmp_path, broken, "s3", io.BytesIO(), CONTENT_TYPE=form)
    assert status.startswith("400")
    assert content.startswith(b"<Error><Code>")
    assert b"<Code>ValidationException</Code><Message>The local platform can't answer this GET /: KeyError" in content


def test_a_bug_before_moto_is_told_in_awss_form(tmp_path: Path) -> None:
    more = {"HTTP_X_AMZ_TARGET": "SageMaker.ListModels", "CONTENT_LENGTH": "2"}
    status, content = ask(tmp_path, lambda *_: [], "sagemaker", None, **more)
    assert status.startswith("500")
    assert json.loads(content)["__type"] == "InternalFailure"


class Answer:
    """An answer of moto that knows whether it was closed."""

    def __init__(self, status: str, content: bytes | Exception) -> None:
        self._status, self._content = status, content
        self.closed = False

    def __call__(self, _: Any, start_response: Any) -> Answer:
        start_response(self._status, [])
        return self

    def __iter__(self) -> Iterator[bytes]:
        if isinstance(self._content, Exception):
            raise self._content
        yield self._content

    def close(self) -> None:
        self.closed = True


def request(operation: str, **document: str) -> ApiRequest:
    environ = {"HTTP_X_AMZ_TARGET": f"Logs_20140328.{operation}", "wsgi.input": io.BytesIO()}
    return ApiRequest(service="logs", region="us-east-1", operation=operation, document=document, environ=environ)


@pytest.mark.parametrize(("status", "content"), [("200 OK", b"{}"), ("404 Not Found", b"{}")])
def test_an_answer_of_moto_is_closed(status: str, content: bytes) -> None:
    answer = Answer(status, content)
    assert MotoBackend(answer)(request("DescribeLogGroups")).status == status
    assert answer.closed


@pytest.mark.parametrize(
    ("status", "content"), [("404 Not Found", b"<html>"), ("500 Error", b"{}"), ("400 Error", OSError("gone"))]
)
def test_an_answer_that_no_client_can_read_is_refused_and_closed(status: str, content: bytes | Exception) -> None:
    answer = Answer(status, content)
    with pytest.raises(ApiError, match="can't answer this DescribeLogGroups"):
        MotoBackend(answer)(request("DescribeLogGroups"))
    assert answer.closed


def test_an_answer_to_the_log_filter_is_closed() -> None:
    answer = Answer("200 OK", b'{"logStreams": []}')
    asked = request("FilterLogEvents", logGroupName="a", logStreamNamePrefix="b")
    log_filter = LogFilter(MotoBackend(answer))
    assert log_filter.answers(asked)
    assert log_filter(asked).status == "200 OK"
    assert answer.closed


def test_the_sdk_finds_the_arn_of_any_role_by_its_name(platform: LocalSageMaker) -> None:
    import sagemaker

    account = platform.boto_session.client("sts").get_caller_identity()["Account"]
    for session in (platform.session, sagemaker.Session(platform.boto_session)):
        assert session.expand_role("SageMakerRole") == f"arn:aws:iam::{account}:role/SageMakerRole"
    names = [role["RoleName"] for role in platform.boto_session.client("iam").list_roles()["Roles"]]
    assert names.count("SageMakerRole") == 1


def test_a_role_that_was_deleted_is_not_there_until_it_is_created(platform: LocalSageMaker) -> None:
    iam = platform.boto_session.client("iam")
    iam.get_role(RoleName="mine")
    iam.delete_role(RoleName="mine")
    with pytest.raises(ClientError, match="NoSuchEntity"):
        iam.get_role(RoleName="mine")
    iam.create_role(RoleName="mine", AssumeRolePolicyDocument="{}")
    assert iam.get_role(RoleName="mine")["Role"]["RoleName"] == "mine"


def test_what_is_no_name_of_a_role_is_refused(platform: LocalSageMaker) -> None:
    with pytest.raises(ClientError) as refused:
        platform.boto_session.client("iam").get_role(RoleName="a role")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 404)
