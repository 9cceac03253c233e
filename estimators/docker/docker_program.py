"""The `docker` program, and the check that an engine answers. It knows nothing of our images, jobs or hosts.

The program is used instead of a client library, because it knows the user's contexts, sockets and credentials.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

ENGINE_SECONDS = 20.0
"""Time limit in seconds for the first answer of an engine."""

SECONDS = 30.0
"""Time limit in seconds for one Docker command. Docker needs seconds under load; a hanging Docker never answers."""


class DockerError(RuntimeError):
    """Docker is missing or failed; the message repeats Docker's own words."""


def docker(
    *arguments: str,
    timeout: float | None = None,
    keep: Sequence[int] = (),
    entered: str = "",
) -> str:
    """Run one docker command to its end, and return its standard output without the last line break.

    ``timeout`` is in seconds, None waits for ever. ``keep`` are descriptors that the program inherits, ``entered`` is
    its standard input. Raise DockerError if the program is missing, fails or takes too long.
    """
    try:
        done = subprocess.run(
            [program(), *arguments],
            input=entered,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            pass_fds=keep,
            start_new_session=True,  # Ctrl-C in a terminal reaches this process alone, which cleans up
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DockerError(f"docker {arguments[0]} did not end within {error.timeout:g} seconds.") from error
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit code {done.returncode}, without a word"
        raise DockerError(f"docker {arguments[0]} failed: {said}")
    return done.stdout.rstrip("\n")


def program() -> str:
    """Return the path of the docker program; raise DockerError if it is not installed."""
    path = shutil.which("docker")
    if path is None:
        raise DockerError(
            "There is no `docker` program on PATH. Install Docker: https://docs.docker.com/engine/install/"
        )
    return path


def require_engine() -> None:
    """Raise DockerError, with a remedy, unless a Docker engine answers."""
    try:
        docker("version", "--format", "{{.Server.Version}}", timeout=ENGINE_SECONDS)
    except DockerError as error:
        if "on PATH" in str(error):
            raise
        raise DockerError(
            f"No Docker engine answers: {str(error).partition(': ')[2] or error} Start it (Docker Desktop, or "
            "`sudo systemctl start docker`), see that you may use it (the group docker), or choose another one "
            "(DOCKER_HOST, `docker context use`)."
        ) from error
