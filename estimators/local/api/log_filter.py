"""FilterLogEvents by the prefix of a stream's name, which moto passes over: it would answer every job's events.

The prefix is replaced by the names of the streams that begin with it; moto knows those.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from estimators.local.api.front import DOCUMENT, OPERATION, read_answer
from estimators.local.api.refusal import refuse
from estimators.local.engine import ApiError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_TARGET = "Logs_20140328."
_PREFIX = "logStreamNamePrefix"


class LogFilter:
    """A WSGI application: FilterLogEvents with a prefix here, with the help of `inner`; the rest is `inner`'s."""

    def __init__(self, inner: WSGIApplication) -> None:
        self._inner = inner

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request that `OfferedOperations` let through."""
        document = environ.get(DOCUMENT, {})
        prefix = document.get(_PREFIX) if environ[OPERATION].name == "FilterLogEvents" else None
        if prefix is None:
            return self._inner(environ, start_response)
        if not isinstance(prefix, str) or "logStreamNames" in document:
            message = f"Give either {_PREFIX}, a text, or logStreamNames."
            return refuse(ApiError("InvalidParameterException", message), environ, start_response)
        names: list[str] = []
        page: dict[str, Any] = {"logGroupName": document.get("logGroupName"), _PREFIX: prefix}
        while True:
            status, headers, content = self._ask(environ, "DescribeLogStreams", page)
            if not status.startswith("200"):
                start_response(status, headers)
                return [content]
            answer = json.loads(content)
            names += [stream["logStreamName"] for stream in answer["logStreams"]]
            if not answer.get("nextToken"):
                break
            page["nextToken"] = answer["nextToken"]
        if names:  # none at all would mean every stream
            others = {name: value for name, value in document.items() if name != _PREFIX}
            status, headers, content = self._ask(environ, "FilterLogEvents", {**others, "logStreamNames": names})
        else:
            content = b'{"events": [], "searchedLogStreams": []}'
            headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(content)))]
        start_response(status, headers)
        return [content]

    def _ask(
        self, environ: WSGIEnvironment, operation: str, document: dict[str, Any]
    ) -> tuple[str, list[tuple[str, str]], bytes]:
        """Send `inner` another request of the same client."""
        content = json.dumps(document).encode()
        head: list[Any] = []

        def keep(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
            head[:] = [status, headers]

        asked = {
            **environ,
            "HTTP_X_AMZ_TARGET": _TARGET + operation,
            "CONTENT_LENGTH": str(len(content)),
            "wsgi.input": io.BytesIO(content),
        }
        answer = read_answer(self._inner(asked, keep))
        return head[0], head[1], answer
