"""The `docker` program, and whether an engine answers it. It knows nothing of images of ours, jobs or hosts.

The program, and no client library: it knows the user's contexts, sockets and credentials, whoever made the engine.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

ENGINE_SECONDS = 20.0
"""How long an engine may take to say that it is there."""

SECONDS = 30.0
"""How long Docker may take to do one thing: under load it needs seconds, and one that hangs for ever."""


class DockerError(RuntimeError):
    """Docker can't be had, or did not do what it was asked for; the message holds its own words."""


def docker(
    *arguments: str,
    timeout: float | None = None,
    keep: Sequence[int] = (),
    entered: str = "",
) -> str:
    """Run one docker command to its end.

    Args:
        arguments: The command and its arguments.
        timeout: Seconds that it may take; None waits for ever.
        keep: Descriptors that the program gets, and holds open until it ends.
        entered: What it reads from its standard input.

    Returns:
        What it wrote to stdout, without the last line's end.

    Raises:
        DockerError: There is no such program, it failed, or it took too long.
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
            start_new_session=True,  # Ctrl-C in a terminal is for this process, which ends what it began
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DockerError(f"docker {arguments[0]} did not end within {error.timeout:g} seconds.") from error
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit code {done.returncode}, without a word"
        raise DockerError(f"docker {arguments[0]} failed: {said}")
    return done.stdout.rstrip("\n")


def program() -> str:
    """Return where the docker program is.

    Raises:
        DockerError: It is not installed.
    """
    path = shutil.which("docker")
    if path is None:
        raise DockerError(
            "There is no `docker` program on PATH. Install Docker: https://docs.docker.com/engine/install/"
        )
    return path


def require_engine() -> None:
    """Return if an engine answers.

    Raises:
        DockerError: None does, with what to do.
    """
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
