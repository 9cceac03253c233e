"""Pull missing images, from Amazon's registries with the user's AWS account."""

from __future__ import annotations

import base64
import logging
import re
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from estimators.docker import docker_program
from estimators.docker.docker_program import DockerError, docker

if TYPE_CHECKING:
    import boto3

logger = logging.getLogger(__name__)

_ECR = re.compile(r"(?P<registry>(?P<account>\d{12})\.dkr\.ecr\.(?P<region>[\w-]+)\.amazonaws\.com(\.cn)?)/")


def require_image(image: str, session: boto3.Session) -> None:
    """Pull an image unless it is on this machine; for Amazon's registries, log in with the session first.

    Raise DockerError, with the command that builds an image, if it can't be pulled.
    """
    try:
        docker("image", "inspect", "--format", "{{.Id}}", "--", image, timeout=docker_program.SECONDS)
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
