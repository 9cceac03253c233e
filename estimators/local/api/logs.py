"""CloudWatch Logs where moto is not enough: streams of earlier platforms, and FilterLogEvents.

For most patterns, and for any prefix of stream names, moto would return every event. Here a prefix is replaced by the
names of the matching streams, which moto supports, and the pattern is matched here. AWS orders the events of all
streams by time; moto does so on request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from estimators.local.api.protocols import Answer, ApiRequest, document_answer
from estimators.local.engine import ApiError
from estimators.local.engine.hosted.logs import LOG_GROUPS

_ABOUT_STREAMS = frozenset({"DescribeLogStreams", "GetLogEvents", "FilterLogEvents", "DeleteLogStream"})
_PREFIX = "logStreamNamePrefix"
_PATTERN = "filterPattern"
_MOST_EVENTS = 10_000
"""Limit of events in one answer, as on AWS."""


class EarlierLogs(Protocol):
    """The log streams of earlier platforms, which return when a client asks for them."""

    def bring_logs(self, group: str, streams: str) -> None:
        """Return once the earlier streams of a log group with this name prefix are restored."""

    def forget_logs(self, group: str, stream: str | None) -> None:
        """Forget an earlier stream of a log group, or all of them if ``stream`` is None."""


def restore_streams(earlier: EarlierLogs, request: ApiRequest) -> None:
    """Restore the earlier log streams that a request reads, and forget those that it deletes."""
    document, group = request.document, request.document.get("logGroupName")
    if request.service != "logs" or group not in LOG_GROUPS:
        return
    if request.operation in _ABOUT_STREAMS:
        for streams in _streams(document):
            earlier.bring_logs(group, streams)
    if request.operation == "DeleteLogStream":
        earlier.forget_logs(group, _text(document.get("logStreamName")))
    elif request.operation == "DeleteLogGroup":
        earlier.forget_logs(group, None)


def _streams(document: Mapping[str, Any]) -> Iterable[str]:
    """Return the name prefixes of the streams that a request is about; ``""`` if it may be about any."""
    names = document.get("logStreamNames") or [document.get("logStreamName") or document.get("logStreamNamePrefix")]
    return [name if isinstance(name, str) else "" for name in names] if isinstance(names, list) else [""]


def _text(name: object) -> str:
    """Return a stream's name; an empty text, the name of no stream, for an invalid one."""
    return name if isinstance(name, str) and name.isprintable() else ""


class LogFilter:
    """Answers FilterLogEvents, from the answers of `moto`."""

    def __init__(self, moto: Callable[[ApiRequest], Answer]) -> None:
        self._moto = moto

    def answers(self, request: ApiRequest) -> bool:
        """Return whether a request is a FilterLogEvents."""
        return request.service == "logs" and request.operation == "FilterLogEvents"

    def __call__(self, request: ApiRequest) -> Answer:
        """Answer a request that the filter `answers`."""
        try:
            return document_answer(self._filter(request))
        except _RefusedError as error:
            return error.answer

    def _filter(self, request: ApiRequest) -> dict[str, Any]:
        document = {name: value for name, value in request.document.items() if value is not None}
        pattern = _LogPattern.parse(document.get(_PATTERN, ""))
        asked = {name: value for name, value in document.items() if name not in (_PREFIX, _PATTERN)}
        if _PREFIX in document:
            asked["logStreamNames"] = self._stream_names(request, document)
            if not asked["logStreamNames"]:  # an empty list would mean every stream
                return {"events": [], "searchedLogStreams": []}
        most = asked.get("limit", _MOST_EVENTS)
        if type(most) is not int or not 1 <= most <= _MOST_EVENTS:
            raise ApiError("InvalidParameterException", f"limit={most!r} must be a number from 1 to {_MOST_EVENTS:,}.")
        events: list[dict[str, Any]] = []
        # moto's limit counts all events, not the matching ones: ask for full pages, and cut here.
        asked |= {"limit": _MOST_EVENTS, "interleaved": True}
        while True:
            answer = self._ask(request, "FilterLogEvents", asked)
            events += [event for event in answer["events"] if pattern.matches(event["message"])]
            if len(events) > most:
                last = events[most - 1]
                token = f"{asked['logGroupName']}@{last['logStreamName']}@{last['eventId']}"  # as moto writes it
                return {**answer, "events": events[:most], "nextToken": token}
            asked["nextToken"] = answer.get("nextToken")
            if not asked["nextToken"]:
                return {**answer, "events": events}

    def _stream_names(self, request: ApiRequest, document: Mapping[str, Any]) -> list[str]:
        prefix = document[_PREFIX]
        if not isinstance(prefix, str) or "logStreamNames" in document:
            raise ApiError("InvalidParameterException", f"Give either {_PREFIX}, a text, or logStreamNames.")
        names: list[str] = []
        page: dict[str, Any] = {"logGroupName": document.get("logGroupName"), _PREFIX: prefix}
        while True:
            answer = self._ask(request, "DescribeLogStreams", page)
            names += [stream["logStreamName"] for stream in answer["logStreams"]]
            if not answer.get("nextToken"):
                return names
            page["nextToken"] = answer["nextToken"]

    def _ask(self, request: ApiRequest, operation: str, document: dict[str, Any]) -> dict[str, Any]:
        answer = self._moto(request.asking(operation, document=document))
        if answer.code != 200:
            raise _RefusedError(answer)
        content: dict[str, Any] = json.loads(answer.content)
        return content


class _RefusedError(Exception):
    """moto refused one of the requests that make an answer."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


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
