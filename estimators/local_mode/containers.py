"""The containers of one job, found by their label: watched, stopped, asked how they ended, and removed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

from estimators.docker.docker_program import docker, program

JOB_LABEL, HOST_LABEL = "smddp.local-mode.job", "smddp.local-mode.host"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How one host ended."""

    host: str
    """Its name."""
    code: int
    """Its first process's exit code."""
    at: str
    """When, in a form that sorts."""
    out_of_memory: bool = False
    """Whether the machine ended something of it for lack of memory."""


class Containers:
    """Those of one job."""

    def __init__(self, job: str) -> None:
        """Know them by the job's label; nothing is asked yet."""
        self._filter = f"label={JOB_LABEL}={job}"
        self._network = f"name=^{job}$"
        self._stops: list[subprocess.Popen[bytes]] = []

    def running(self) -> dict[str, str]:
        """Those that run now: their hosts by their ids."""
        listed = docker("ps", "--filter", self._filter, "--format", f'{{{{.ID}}}} {{{{.Label "{HOST_LABEL}"}}}}')
        return dict(line.split(" ", 1) for line in listed.splitlines())

    def still_running(self) -> dict[str, str]:
        """Those that run now, for certain: Docker may list one as running for a while after its end."""
        listed = self.running()
        known = json.loads(docker("inspect", *listed)) if listed else []
        pairs = zip(listed.items(), known, strict=True)
        return {identity: host for (identity, host), each in pairs if each["State"]["Running"]}

    def stop(self, ids: Iterable[str], *, grace_seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace; does not wait."""
        self._stops.append(_in_background("stop", "--time", f"{grace_seconds:.0f}", *ids))

    def kill(self, ids: Iterable[str]) -> None:
        """Send SIGKILL; does not wait."""
        self._stops.append(_in_background("kill", *ids))

    def join_stops(self) -> None:
        """Wait for every stop that was begun; all containers have ended, so they end too."""
        for stop in self._stops:
            stop.wait()

    def ends(self) -> list[End]:
        """How those that have run ended, in the order in which they did."""
        ids = docker("ps", "--all", "--quiet", "--filter", self._filter).split()
        ended = []
        for each in json.loads(docker("inspect", *ids)) if ids else []:
            state = each["State"]
            if state["Status"] == "exited":
                host = each["Config"]["Labels"][HOST_LABEL]
                oom = bool(state["OOMKilled"])
                ended.append(End(host=host, code=state["ExitCode"], at=state["FinishedAt"], out_of_memory=oom))
        return sorted(ended, key=lambda end: end.at)

    def remove(self) -> None:
        """Remove them, with their own volumes, and the job's network; Compose would take a second for it.

        Raises:
            DockerError: Some of them are left.
        """
        if ids := docker("ps", "--all", "--quiet", "--filter", self._filter).split():
            docker("rm", "--force", "--volumes", *ids)
        if networks := docker("network", "ls", "--quiet", "--filter", self._network).split():
            docker("network", "rm", *networks)

    def watch(self, tell: Callable[[str, int], object]) -> subprocess.Popen[str]:
        """Tell the host and the exit code of each that ends, from a thread of its own, until the process is ended."""
        since = time.time() - 1  # docker may take longer to listen than a host takes to end
        watcher = subprocess.Popen(
            [
                *(program(), "events", "--since", f"{since:.0f}", "--format", "{{json .Actor.Attributes}}"),
                *("--filter", "type=container", "--filter", "event=die", "--filter", self._filter),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        assert watcher.stdout is not None
        Thread(target=_tell_each, args=(watcher.stdout, tell), daemon=True).start()
        return watcher


def _tell_each(lines: Iterable[str], tell: Callable[[str, int], object]) -> None:
    for line in lines:
        attributes: dict[str, Any] = json.loads(line)
        tell(attributes[HOST_LABEL], int(attributes["exitCode"]))


def _in_background(*arguments: str) -> subprocess.Popen[bytes]:
    command: Sequence[str] = [program(), *arguments]
    silent = subprocess.DEVNULL  # a container that ended meanwhile is none of anybody's concern
    return subprocess.Popen(command, stdin=silent, stdout=silent, stderr=silent, start_new_session=True)
