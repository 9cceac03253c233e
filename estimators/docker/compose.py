"""Docker Compose on this machine: the plugin of the `docker` program, whatever its version, or the older program."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from estimators.docker.docker_program import DockerError, program
from estimators.docker.search_path import search_path

_ANSWER_SECONDS = 20.0

_known: dict[tuple[str, ...], str] = {}
"""The versions of those that have answered this process."""

_INSTALL = (
    "Docker Compose is not installed. Install docker-compose-plugin (from Docker's own repository), docker-compose-v2 "
    "(Ubuntu) or docker-compose (Debian); Docker Desktop has it. See https://docs.docker.com/compose/install/"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compose:
    """A Compose that answers."""

    command: tuple[str, ...]
    """What runs it: ``/usr/bin/docker compose``, or ``/usr/bin/docker-compose``."""
    version: str
    """What it says that it is, such as 5.0.1."""

    @property
    def knows_devices(self) -> bool:
        """Whether it takes a ``deploy`` key for GPUs in a file of the version that the SageMaker SDK writes."""
        return not self.version.lstrip("v").startswith("1.")


def find_compose() -> Compose:
    """The Compose to use: the plugin, else the program.

    Raises:
        DockerError: There is no `docker`, or no Compose; the message says what to install.
    """
    commands: list[tuple[str, ...]] = [(program(), "compose")]
    if standalone := shutil.which("docker-compose", path=search_path()):
        commands.append((standalone,))
    for command in commands:
        # The older program takes half a second for an answer, and keeps to it.
        if version := _known.get(command) or _version(command):
            _known[command] = version
            return Compose(command=command, version=version)
    raise DockerError(_INSTALL)


def _version(command: Sequence[str]) -> str | None:
    """What `command` answers; None if it is no Compose, or a broken one."""
    try:
        answer = subprocess.run(
            [*command, "version", "--short"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None
