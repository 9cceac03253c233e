"""What stands before moto refuses in AWS's form, and closes what it does not hand on."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from estimators.local.api.front import DOCUMENT, OPERATION, AwsErrors, OfferedOperations
from estimators.local.api.log_filter import LogFilter
from estimators.local.api.operation import ApiOperation
from estimators.local.api.refusal import SERVICE


def environ(service: str, path: str = "/", **more: Any) -> dict[str, Any]:
    return {SERVICE: service, "PATH_INFO": path, "REQUEST_METHOD": "POST", "wsgi.input": io.BytesIO(b"{}"), **more}


def ask(application: Any, request: dict[str, Any]) -> tuple[str, bytes]:
    """The status and the content."""
    answered: list[str] = []
    content = b"".join(application(request, lambda status, _: answered.append(status)))
    return answered[0], content


def test_a_bug_is_told_in_awss_form() -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("a bug")

    status, content = ask(OfferedOperations(broken), environ("s3"))
    assert status.startswith("500")
    assert b"<Code>InternalFailure</Code><Message>KeyError: 'a bug'</Message>" in content


def test_a_request_that_can_not_be_examined_is_told_in_awss_form() -> None:
    request = environ("sagemaker", HTTP_X_AMZ_TARGET="SageMaker.ListModels")
    request["wsgi.input"] = None
    status, content = ask(OfferedOperations(lambda *_: []), request)
    assert status.startswith("500")
    assert json.loads(content)["__type"] == "InternalFailure"


class Answer:
    """An answer that knows whether it was closed."""

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


@pytest.mark.parametrize(
    ("status", "content"),
    [("404 Not Found", b"{}"), ("404 Not Found", b"<html>"), ("500 Error", b"{}"), ("400 Error", OSError("gone"))],
)
def test_an_error_that_is_told_in_other_words_is_closed(status: str, content: bytes | Exception) -> None:
    answer = Answer(status, content)
    request = environ("logs", **{OPERATION: ApiOperation(service="logs", name="DescribeLogGroups")})
    assert ask(AwsErrors(answer), request)[0].startswith("4")
    assert answer.closed


def test_what_the_log_filter_asks_for_is_closed() -> None:
    answer = Answer("200 OK", b'{"logStreams": []}')
    document = {"logGroupName": "a", "logStreamNamePrefix": "b"}
    operation = ApiOperation(service="logs", name="FilterLogEvents")
    request = environ("logs", **{OPERATION: operation, DOCUMENT: document})
    assert ask(LogFilter(answer), request)[0].startswith("200")
    assert answer.closed
