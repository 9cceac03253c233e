"""The events of a training job, and the listener that receives them.

An event is a change of the job's status, a line of its log, or a value of one of its metrics. A listener is the
user's function or a shell command, which sends a chat message or a mail.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

from estimators.errors import EstimatorError, TrainingJobFailed, TrainingJobStopped, shown_reason
from estimators.log_reader import LogLine

logger = logging.getLogger(__name__)
ENDED = frozenset({"Completed", "Failed", "Stopped"})
"""The final statuses."""
LAST_STATUSES = ENDED | {"MaxRuntimeExceeded", "MaxWaitTimeExceeded"}
"""The final secondary statuses."""
COMMAND_SECONDS = 30.0
"""Time limit of a command; then it is killed, and the wait for the job continues."""
_MOST_SAID = 300
"""Bytes of a command's output that a warning shows."""
_STOPPED_BY: Mapping[str, str] = {
    "MaxRuntimeExceeded": "it ran for the whole of max_run (MaxRuntimeInSeconds); give it more, or resume it from its "
    "checkpoint",
    "MaxWaitTimeExceeded": "it took the whole of max_wait (MaxWaitTimeInSeconds), waiting included; give it more, or "
    "resume it from its checkpoint",
    "Interrupted": "its spot instances were taken away",
    "Stopped": "somebody called StopTrainingJob",
}
"""The cause of a job's stop, by its secondary status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusChange:
    """The job entered another secondary status, such as Training, Interrupted, Completed."""

    time: datetime
    status: str
    message: str
    """The platform's message; may be empty."""

    @classmethod
    def of(cls, transition: Mapping[str, Any]) -> StatusChange:
        """Convert one of a description's SecondaryStatusTransitions."""
        return cls(
            time=transition["StartTime"], status=transition["Status"], message=transition.get("StatusMessage", "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValue:
    """A value that one of the job's metric definitions found in a line of its log."""

    time: datetime
    host: str
    step: float | None
    """The step in the same line, or None if absent."""
    epoch: float | None
    """The epoch in the same line, or None if absent."""
    metric: str
    """The name in the metric definition."""
    value: float


JobEvent: TypeAlias = StatusChange | LogLine | MetricValue
_KINDS = {StatusChange: "status", LogLine: "line", MetricValue: "metric"}
OnEvent: TypeAlias = Callable[[JobEvent], object] | str


def _as_json(event: JobEvent, job_name: str) -> str:
    """Return an event as a JSON object, with the job's name and the kind of event: status, line or metric."""
    fields = {"job": job_name, "event": _KINDS[type(event)], **dataclasses.asdict(event)}
    return json.dumps(fields, default=lambda time: time.isoformat())


def require_completed(name: str, description: Mapping[str, Any], advice: Callable[[str], str]) -> None:
    """Raise TrainingJobFailed or TrainingJobStopped unless the job has completed.

    The message ends with `advice(status)`.
    """
    status, secondary = description["TrainingJobStatus"], description.get("SecondaryStatus", "")
    if status == "Completed":
        return
    kind, verb, unknown = TrainingJobFailed, "failed", "the platform gives no reason"
    if status == "Stopped":
        kind, verb, unknown = TrainingJobStopped, "was stopped", _STOPPED_BY.get(secondary, "it was stopped")
    reason = description.get("FailureReason", unknown)
    raise kind(
        f"{name} {verb} ({secondary or status}): {shown_reason(reason)}{advice(status)}",
        job_name=name,
        status=status,
        secondary_status=secondary,
        reason=reason,
    )


def check_listener(on_event: object) -> None:
    """Raise EstimatorError if `on_event` is neither a function nor a shell command."""
    if not callable(on_event) and not (isinstance(on_event, str) and on_event.strip()):
        raise EstimatorError(f"on_event is {on_event!r}. Give a function that takes an event, or a shell command.")


class Listener:
    """Passes events on. A failure of the function or command is only logged, once for each kind."""

    def __init__(self, on_event: OnEvent, job_name: str) -> None:
        """Take a function, for all events, or a shell command, only for changes of status.

        A process for each line would delay the log.
        """
        check_listener(on_event)
        self._on_event = on_event
        self._job_name = job_name
        self._warned: set[str] = set()

    def tell(self, event: JobEvent) -> None:
        """Pass an event on."""
        if isinstance(self._on_event, str):
            if isinstance(event, StatusChange):
                self._run(self._on_event, _as_json(event, self._job_name))
            return
        try:
            self._on_event(event)
        except Exception as fault:
            kind = type(fault).__name__
            self._warn(kind, f"on_event failed, and the wait continues: {kind}: {fault}")

    def _run(self, command: str, text: str) -> None:
        try:
            code, said = _run_in_shell(command, f"{text}\n")
        except subprocess.TimeoutExpired:
            said = f"on_event was ended after {COMMAND_SECONDS:g} seconds, and the wait continues: {command}"
            self._warn("slow", said)
        except (OSError, ValueError) as fault:  # too many processes; a NUL in the command
            said = f"on_event can't be run, and the wait continues: {command!r}: {fault}"
            self._warn(type(fault).__name__, said)
        else:
            if code:
                said = f"on_event ended with exit code {code}, and the wait continues: {command}: {said}"
                self._warn(f"exit code {code}", said)

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", text)


def _run_in_shell(command: str, text: str) -> tuple[int, str]:
    """Run a command with `text` as its input; return its exit code and the end of its output.

    1. Input and output are files, not pipes: nothing waits for a background process that keeps them open.
    2. On a timeout the whole process group is killed before TimeoutExpired is raised.
    3. OSError and ValueError (a NUL in the command) mean that it was not started.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as output:
        stdin.write(text.encode(errors="replace"))
        stdin.seek(0)
        arguments = ["/bin/sh", "-c", command]
        child = subprocess.Popen(arguments, stdin=stdin, stdout=output, stderr=output, start_new_session=True)
        try:
            code = child.wait(COMMAND_SECONDS)
        except BaseException:
            if child.returncode is None:  # not reaped yet, so its process ID can't belong to another process
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            raise
        output.seek(max(0, output.seek(0, os.SEEK_END) - _MOST_SAID))
        return code, output.read().decode(errors="replace").strip()
