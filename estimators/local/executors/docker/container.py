"""One host that is a container, followed by a ``docker start --attach`` and ordered about by other docker commands."""

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
from estimators.hosts.exit import Exit
from estimators.local.executors.docker.settings import Docker
from estimators.local.executors.executor import ExecutorError, HostStartError
from smddp.process.output_lines import merge_lines

logger = logging.getLogger(__name__)

_START_SECONDS = 60.0
_LOOK_SECONDS = 0.03
_NOTE_SECONDS = 1.0
_LINE_END = re.compile(r"[\r\n]")
_REQUESTS_FAULT = re.compile(r"\bexec: |exec format error|Range of CPUs|memory limit")
_NEVER = "0001-01-01"
"""What Docker says of a time that has not come."""


def create(name: str, arguments: Sequence[str], environment: Mapping[str, str], *, keep: int) -> None:
    """Create a container.

    Args:
        name: What it is called.
        arguments: Options, image, program and arguments.
        environment: The program's variables. No other user of this machine sees them, as they would in the command,
            but for values of several lines, which can be given in no other way. None gets into docker's own
            environment: a job's DOCKER_HOST or LD_PRELOAD is not meant for that.
        keep: A descriptor that stays open for as long as Docker is at it.

    Raises:
        DockerError: Docker refuses.
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
    """Return the error that Docker's words mean: the request's if they name its program or limits, else Docker's."""
    return HostStartError(why) if _REQUESTS_FAULT.search(why) else ExecutorError(why)


class HostContainer:
    """A `HostProcess` that is a container.

    Args:
        name: A container that was created.
        host: The host's name.
        settings: What it was created with.

    Raises:
        HostStartError: The container could not be started, with Docker's words.
    """

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
            start_new_session=True,  # Ctrl-C in a terminal is not Docker's business
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
        """Standard output and standard error, together, of which no line is torn by the other's."""
        return self._output

    def signal(self, signum: int) -> None:
        """Send a signal to the program, which is the container's PID 1; nothing if it has ended."""
        threading.Thread(target=self._send, args=(signum,), daemon=True).start()

    def kill(self) -> None:
        """End the container at once; if Docker does not do it, give it up."""
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
        """Return what is known of an end with 137 that is not ours."""
        # Docker notes a kill once it is done, which may be after the end that it led to.
        times = (f"--since={state['StartedAt']}", f"--until={time.time() + _NOTE_SECONDS:.3f}")
        filters = (f"--filter=container={self._name}", "--filter=event=kill")
        form = "{{.Actor.Attributes.signal}}"
        try:
            signals = docker("events", *times, *filters, "--format", form, timeout=docker_program.SECONDS).split()
        except DockerError as error:
            logger.warning("%s: who ended it is not known: %s", self._name, error)
            signals = []
        if str(int(signal.SIGKILL)) in signals:
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
