"""The `docker` program: its commands, the check that an engine answers, and the pull of missing images.

The program is used instead of a client library, because it knows the user's contexts, sockets and credentials.
"""

from __future__ import annotations

import base64
import logging
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import boto3


logger = logging.getLogger(__name__)

ENGINE_SECONDS = 20.0
"""Time limit in seconds for the first answer of an engine."""
SECONDS = 30.0
"""Time limit in seconds for one Docker command. Docker needs seconds under load; a hanging Docker never answers."""
_ECR = re.compile(r"(?P<registry>(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[\w-]+)\.amazonaws\.com(\.cn)?)/")


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


def require_image(image: str, session: boto3.Session) -> None:
    """Pull an image unless it is on this machine; for Amazon's registries, log in with the session first.

    Raise DockerError, with the command that builds an image, if it can't be pulled.
    """
    from botocore.exceptions import BotoCoreError, ClientError  # slow to import, and only a pull needs them

    try:
        docker("image", "inspect", "--format", "{{.Id}}", "--", image, timeout=SECONDS)
    except DockerError as fault:
        if "no such image" not in str(fault).lower():
            raise
    else:
        return
    logger.info("pulling %s, which is not on this machine", image)
    try:
        if ecr := _ECR.match(image):
            _log_in(session, **ecr.groupdict())
        docker("pull", "--quiet", "--", image)
    except (DockerError, BotoCoreError, ClientError) as fault:
        why = str(fault).rstrip(".")
        raise DockerError(
            f"The image {image} is not on this machine, and can't be pulled: {why}. Build one: `smddp image build`."
        ) from fault


def _log_in(session: boto3.Session, *, registry: str, account: str, region: str) -> None:
    answer = session.client("ecr", region_name=region).get_authorization_token(registryIds=[account])
    token = answer["authorizationData"][0]["authorizationToken"]
    user, _, password = base64.b64decode(token).decode().partition(":")
    docker("login", "--username", user, "--password-stdin", registry, entered=password)


def bind(source: str, target: str) -> str:
    """Return the value of ``docker --mount``, a line of CSV. ``--volume`` would end a path at its first colon."""
    return f"type=bind,{_field('source', source)},{_field('target', target)}"


def _field(name: str, path: str) -> str:
    """Return one quoted field of CSV, because a path may contain commas and quotes."""
    quoted = path.replace('"', '""')
    return f'"{name}={quoted}"'
