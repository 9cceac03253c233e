"""Pass a job's events on to the user's function or shell command, for chat or mail."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable
from typing import TypeAlias

from estimators.errors import EstimatorError
from estimators.job_handle.events import JobEvent, StatusChange, as_json

logger = logging.getLogger(__name__)

OnEvent: TypeAlias = Callable[[JobEvent], object] | str

COMMAND_SECONDS = 30.0
"""Time limit of a command; then it is killed, and the wait for the job continues."""
_MOST_SAID = 300
"""Bytes of a command's output that a warning shows."""


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
                self._run(self._on_event, as_json(event, self._job_name))
            return
        try:
            self._on_event(event)
        except Exception as fault:
            kind = type(fault).__name__
            self._warn(kind, f"on_event failed, and the waiting goes on: {kind}: {fault}")

    def _run(self, command: str, text: str) -> None:
        try:
            code, said = _ended(command, f"{text}\n")
        except subprocess.TimeoutExpired:
            said = f"on_event was ended after {COMMAND_SECONDS:g} seconds, and the waiting goes on: {command}"
            self._warn("slow", said)
        except (OSError, ValueError) as fault:  # too many processes; a NUL in the command
            said = f"on_event can't be run, and the waiting goes on: {command!r}: {fault}"
            self._warn(type(fault).__name__, said)
        else:
            if code:
                said = f"on_event ended with exit code {code}, and the waiting goes on: {command}: {said}"
                self._warn(f"exit code {code}", said)

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", text)


def _ended(command: str, given: str) -> tuple[int, str]:
    """Run a command with `given` as its input; return its exit code and the end of its output.

    1. Input and output are files, not pipes: a background process of the command may keep them open, and nobody waits.
    2. On a timeout the whole process group is killed before TimeoutExpired is raised.
    3. OSError and ValueError (a NUL in the command) mean that it was not started.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as output:
        stdin.write(given.encode(errors="replace"))
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
