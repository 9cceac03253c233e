"""What stands before moto refuses in AWS's form, and closes what it does not hand on."""

from __future__ import annotations

import io
import json
from typing import Any

from estimators.local.api.front import OfferedOperations
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
