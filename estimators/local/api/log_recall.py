"""Restore the log streams of an earlier platform's jobs before a request about them, and forget deleted ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from estimators.local.api.front import DOCUMENT, OPERATION
from estimators.local.api.training_jobs import TrainingJobs
from estimators.local.engine.logs import LOG_GROUPS

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_ABOUT_STREAMS = frozenset({"DescribeLogStreams", "GetLogEvents", "FilterLogEvents", "DeleteLogStream"})


class LogRecall:
    """A WSGI application that restores the log streams of a request, then passes it on to ``inner``."""

    def __init__(self, engine: TrainingJobs, inner: WSGIApplication) -> None:
        self._engine = engine
        self._inner = inner

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request that `OfferedOperations` let through."""
        operation, document = environ[OPERATION], environ.get(DOCUMENT, {})
        group = document.get("logGroupName")
        if operation.service == "logs" and group in LOG_GROUPS:
            if operation.name in _ABOUT_STREAMS:
                for streams in _streams(document):
                    self._engine.bring_logs(group, streams)
            if operation.name == "DeleteLogStream":
                self._engine.forget_logs(group, _text(document.get("logStreamName")))
            elif operation.name == "DeleteLogGroup":
                self._engine.forget_logs(group, None)
        return self._inner(environ, start_response)


def _streams(document: Mapping[str, Any]) -> Iterable[str]:
    """Return the name prefixes of the streams that a request is about; ``""`` if it may be about any."""
    names = document.get("logStreamNames") or [document.get("logStreamName") or document.get("logStreamNamePrefix")]
    return [name if isinstance(name, str) else "" for name in names] if isinstance(names, list) else [""]


def _text(name: object) -> str:
    """Return a stream's name; an empty text, the name of no stream, for an invalid one."""
    return name if isinstance(name, str) and name.isprintable() else ""
