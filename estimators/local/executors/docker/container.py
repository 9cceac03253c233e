"""One host as a container: ``docker start --attach`` follows it, and other docker commands control it."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from estimators.docker import docker_program
from estimators.docker.docker_program import DockerError, docker, program
from estimators.hosts.failure import Exit
from estimators.local.executors.executor import ExecutorError, HostStartError
from estimators.local.executors.settings import Docker
from smddp.process.output_lines import merge_lines

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.03
_NOTE_SECONDS = 10.0
"""Time limit in seconds for Docker's note of a container's end, which a busy Docker writes late."""
_LINE_END = re.compile(r"[\r\n]")
_REQUESTS_FAULT = re.compile(r"\bexec: |exec format error|Range of CPUs|memory limit")
_NEVER = "0001-01-01"
"""Docker's value of a time that has not come."""


def create(name: str, arguments: Sequence[str], environment: Mapping[str, str], *, keep: int) -> None:
    """Create a container; ``arguments`` are options, image, program and its arguments. Raise DockerError on a refusal.

    The environment goes through a file in memory, so that no other user sees it in a command; only values with line
    breaks stay in the command, because Docker has no other way for them. No variable gets into docker's own
    environment, where a job's DOCKER_HOST or LD_PRELOAD would take effect. ``keep`` is a descriptor that stays open
    while Docker works.
    """
    lines = [f"{name}={value}" for name, value in environment.items()]
    several = [line for line in lines if _LINE_END.search(line)]
    file = os.memfd_create("environment")
    try:
        with open(file, "w", encoding="utf-8", newline="\n", closefd=False) as text:
            text.writelines(f"{line}\n" for line in lines if line not in several)
        given = [f"--env-file=/proc/self/fd/{file}", *(f"--env={line}" for line in several)]
        docker("create", "--name", name, *given, *arguments, timeout=docker_program.SECONDS, keep=[file, keep])
    finally:
        os.close(file)


def not_started(why: str) -> HostStartError:
    """Return HostStartError if Docker's words name the request's program or limits, else `ExecutorError`."""
    return HostStartError(why) if _REQUESTS_FAULT.search(why) else ExecutorError(why)


class HostContainer:
    """A `HostProcess` in a created container; starting it raises HostStartError with Docker's words."""

    def __init__(self, name: str, host: str, settings: Docker) -> None:
        self._name = name
        self._host = host
        self._settings = settings
        self._killed = False
        self._attached = subprocess.Popen(
            [program(), "start", "--attach", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal must not reach docker
            bufsize=0,
        )
        assert self._attached.stdout is not None and self._attached.stderr is not None
        self._output = merge_lines([self._attached.stdout, self._attached.stderr])
        try:
            self._await_start()
        except BaseException:
            self._attached.kill()
            self._attached.wait()
            self._output.close()
            raise

    @property
    def output(self) -> BinaryIO:
        """Standard output and standard error together; no line of one is torn by the other."""
        return self._output

    def signal(self, signum: int) -> None:
        """Send a signal to the program, which is the container's PID 1; do nothing if it has ended."""
        threading.Thread(target=self._send, args=(signum,), daemon=True).start()

    def kill(self) -> None:
        """End the container at once; if Docker does not, stop following it."""
        if self._attached.poll() is None:
            self._killed = True
            threading.Thread(target=self._kill, daemon=True).start()

    def wait(self, timeout: float | None = None) -> Exit | None:
        """Return how it ended, or None after ``timeout`` seconds."""
        try:
            self._attached.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return self._exit

    def _await_start(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            ended = self._attached.poll() is not None
            try:
                started = not self._state()["StartedAt"].startswith(_NEVER)
            except DockerError as error:
                raise self._not_started(str(error)) from error
            if started:
                return
            if ended:
                raise self._not_started(self._output.read().decode(errors="replace").strip())
            if time.monotonic() > deadline:
                raise self._not_started(f"it did not run within {_START_SECONDS:g} seconds")
            time.sleep(_LOOK_SECONDS)

    def _not_started(self, why: str) -> HostStartError:
        return not_started(f"{self._host}: its container could not be started: {why}")

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(
            docker(
                "inspect",
                "--type",
                "container",
                "--format",
                "{{json .State}}",
                self._name,
                timeout=docker_program.SECONDS,
            )
        )
        return state

    @functools.cached_property
    def _exit(self) -> Exit:
        killed = 128 + signal.SIGKILL
        try:
            state = self._state()
        except DockerError as error:
            return Exit(code=killed, lost=None if self._killed else f"its container is gone ({error})")
        code: int = state["ExitCode"]
        if state["Running"]:
            lost = f"Docker does not follow its container any more (exit code {self._attached.returncode})"
            return Exit(code=killed, lost=None if self._killed else lost)
        if state["OOMKilled"]:
            limit = f"its limit is {self._settings.memory}" if self._settings.memory else "this machine has no more"
            return Exit(code=code, shortage=f"ran out of memory: {limit}")
        if code == killed and not self._killed:
            return Exit(code=code, lost=self._who_killed(state))
        return Exit(code=code)

    def _who_killed(self, state: Mapping[str, Any]) -> str:
        """Return the known cause of an exit code 137 that this process did not cause."""
        # Docker notes a kill after it is done, maybe after the attached program has seen the end of the container, but
        # always before it notes that end: it locks the container for both. The notes come as a stream without an end,
        # because Docker's clock may differ from this machine's. A Docker that was started anew has no old notes.
        words = (f"--since={state['StartedAt']}", f"--filter=container={self._name}", "--filter=event=kill")
        form = "--format={{.Action}} {{.Actor.Attributes.signal}}"
        events = subprocess.Popen(
            [docker_program.program(), "events", *words, "--filter=event=die", form],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert events.stdout is not None
        late = threading.Timer(_NOTE_SECONDS, events.kill)
        late.daemon = True
        late.start()
        notes: list[str] = []
        for note in events.stdout:
            notes.append(note.strip())
            if note.startswith("die"):
                break
        else:
            logger.warning("%s: who ended it is not known, because Docker's events do not tell its end", self._name)
        late.cancel()
        events.kill()
        events.communicate()
        if f"kill {int(signal.SIGKILL)}" in notes:
            return "its container was killed from outside (exit code 137)"
        return "its container ended with 137 (its first process was killed, or chose that exit code itself)"

    def _send(self, signum: int) -> None:
        try:
            docker("kill", "--signal", str(signum), self._name, timeout=docker_program.SECONDS)
        except DockerError as error:
            if self._attached.poll() is None:
                logger.warning("%s: signal %d could not be sent: %s", self._name, signum, error)

    def _kill(self) -> None:
        self._send(signal.SIGKILL)
        try:
            self._attached.wait(docker_program.SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning(
                "%s was not killed by Docker within %g seconds; it is not waited for",
                self._name,
                docker_program.SECONDS,
            )
            self._attached.kill()
