"""FilterLogEvents by a pattern or by a prefix of stream names, neither of which moto implements well enough.

For most patterns, and for any prefix, moto would return every event. Here a prefix is replaced by the names of the
matching streams, which moto supports, and the pattern is matched here.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from estimators.local.api.front import DOCUMENT, OPERATION, ask
from estimators.local.api.refusal import refuse
from estimators.local.engine import ApiError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment


_TARGET = "Logs_20140328."
_PREFIX = "logStreamNamePrefix"
_PATTERN = "filterPattern"
_MOST_EVENTS = 10_000
"""Limit of events in one answer, as on AWS."""


class _RefusedError(Exception):
    """The refusal that `inner` answered."""

    def __init__(self, status: str, headers: list[tuple[str, str]], content: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.content = content


class LogFilter:
    """A WSGI application that answers FilterLogEvents with a prefix or a pattern, from the answers of `inner`."""

    def __init__(self, inner: WSGIApplication) -> None:
        self._inner = inner

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request that `OfferedOperations` let through."""
        document = {name: value for name, value in environ.get(DOCUMENT, {}).items() if value is not None}
        if environ[OPERATION].name != "FilterLogEvents" or {_PREFIX, _PATTERN}.isdisjoint(document):
            return self._inner(environ, start_response)
        try:
            answer = self._filter(environ, document)
        except ApiError as error:
            return refuse(error, environ, start_response)
        except _RefusedError as error:
            start_response(error.status, error.headers)
            return [error.content]
        content = json.dumps(answer).encode()
        headers = [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(content)))]
        start_response("200 OK", headers)
        return [content]

    def _filter(self, environ: WSGIEnvironment, document: dict[str, Any]) -> dict[str, Any]:
        pattern = _LogPattern.parse(document.get(_PATTERN, ""))
        asked = {name: value for name, value in document.items() if name not in (_PREFIX, _PATTERN)}
        if _PREFIX in document:
            asked["logStreamNames"] = self._stream_names(environ, document)
            if not asked["logStreamNames"]:  # an empty list would mean every stream
                return {"events": [], "searchedLogStreams": []}
        most = asked.get("limit", _MOST_EVENTS)
        if type(most) is not int or not 1 <= most <= _MOST_EVENTS:
            raise ApiError("InvalidParameterException", f"limit={most!r} must be a number from 1 to {_MOST_EVENTS:,}.")
        events: list[dict[str, Any]] = []
        # The limit of `inner` counts all events, not the matching ones: ask for full pages, and cut here.
        asked["limit"] = _MOST_EVENTS
        while True:
            answer = self._ask(environ, "FilterLogEvents", asked)
            events += [event for event in answer["events"] if pattern.matches(event["message"])]
            if len(events) > most:
                last = events[most - 1]
                token = f"{asked['logGroupName']}@{last['logStreamName']}@{last['eventId']}"  # as moto writes it
                return {**answer, "events": events[:most], "nextToken": token}
            asked["nextToken"] = answer.get("nextToken")
            if not asked["nextToken"]:
                return {**answer, "events": events}

    def _stream_names(self, environ: WSGIEnvironment, document: dict[str, Any]) -> list[str]:
        prefix = document[_PREFIX]
        if not isinstance(prefix, str) or "logStreamNames" in document:
            raise ApiError("InvalidParameterException", f"Give either {_PREFIX}, a text, or logStreamNames.")
        names: list[str] = []
        page: dict[str, Any] = {"logGroupName": document.get("logGroupName"), _PREFIX: prefix}
        while True:
            answer = self._ask(environ, "DescribeLogStreams", page)
            names += [stream["logStreamName"] for stream in answer["logStreams"]]
            if not answer.get("nextToken"):
                return names
            page["nextToken"] = answer["nextToken"]

    def _ask(self, environ: WSGIEnvironment, operation: str, document: dict[str, Any]) -> dict[str, Any]:
        """Send `inner` another request of the same client, and return its answer."""
        content = json.dumps(document).encode()
        asked = {
            **environ,
            "HTTP_X_AMZ_TARGET": _TARGET + operation,
            "CONTENT_LENGTH": str(len(content)),
            "wsgi.input": io.BytesIO(content),
        }
        status, headers, body = ask(self._inner, asked)
        if not status.startswith("200"):
            raise _RefusedError(status, headers, body)
        answer: dict[str, Any] = json.loads(body)
        return answer


# CloudWatch Logs' filter patterns of plain terms: words and quoted phrases that must occur, or must not.
#
# Patterns of JSON (``{ $.a = 1 }``), columns (``[a, b]``) and regular expressions (``%a%``) are refused, because moto
# would let them match everything.
#
# https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax.html
_TERM = re.compile(r'\s*(?P<sign>[?-]?)(?:"(?P<phrase>(?:[^"\\]|\\.)*)"|(?P<word>\w+))(?=\s|$)\s*', re.DOTALL)
"""A word consists of letters, digits and underscores; AWS wants any other text in quotes."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


@dataclass(kw_only=True, slots=True, frozen=True)
class _LogPattern:
    """The messages that a FilterLogEvents asks for. Case matters."""

    required: tuple[str, ...] = ()
    """All of these terms must occur."""
    alternatives: tuple[str, ...] = ()
    """One of these terms must occur, if there are any."""
    excluded: tuple[str, ...] = ()
    """None of these terms may occur."""

    @classmethod
    def parse(cls, text: object) -> _LogPattern:
        """Parse a request's ``filterPattern``; an empty one matches all.

        Raise ApiError if it is malformed or of an unsupported kind.
        """
        if not isinstance(text, str):
            raise ApiError("InvalidParameterException", f"filterPattern={text!r} must be a text.")
        terms: dict[str, list[str]] = {"": [], "?": [], "-": []}
        at = 0
        while text[at:].strip():
            found = _TERM.match(text, at)
            if found is None:
                raise _invalid(text, f"{text[at:].strip()!r} is no such term")
            phrase = found["phrase"]
            terms[found["sign"]].append(found["word"] if phrase is None else _ESCAPED.sub(r"\1", phrase))
            at = found.end()
        if terms["?"] and (terms[""] or terms["-"]):
            raise _invalid(text, "beside other terms, AWS ignores those with '?'")
        return cls(required=tuple(terms[""]), alternatives=tuple(terms["?"]), excluded=tuple(terms["-"]))

    def matches(self, message: str) -> bool:
        """Return whether a message matches."""
        return (
            all(term in message for term in self.required)
            and (not self.alternatives or any(term in message for term in self.alternatives))
            and not any(term in message for term in self.excluded)
        )


def _invalid(text: str, why: str) -> ApiError:
    return ApiError(
        "InvalidParameterException",
        f'Invalid filter pattern {text!r}: {why}. The local platform takes words and "quoted phrases", all of which '
        "must occur, those with '-' that must not, or those with '?' alone, one of which must; no JSON, columns or "
        "regular expressions.",
    )
