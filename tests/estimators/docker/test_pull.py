"""Images that are not on this machine yet, with a shell script for Docker."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from estimators.docker import pull
from estimators.docker.docker_program import DockerError

ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What docker was asked for; it has the image `here`, and can pull all but `absent`."""
    program, asked = tmp_path / "docker", tmp_path / "asked"
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@ $([ "$1" = login ] && cat)" >> {asked}\n'
        'for image; do :; done\n[ "$1" = login ] || [ "$image" = here ] && exit 0\n'
        '[ "$1" = image ] && echo "Error: No such image: $image" >&2 && exit 1\n'
        '[ "$image" != absent ] || { echo "pull access denied" >&2; exit 1; }\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr("estimators.docker.docker_program.program", lambda: str(program))
    return asked


def pulled(asked: Path) -> list[str]:
    return [line.strip() for line in asked.read_text().splitlines() if not line.startswith("image")]


def test_an_image_that_is_here_is_not_pulled(asked: Path) -> None:
    pull.require_image("here", boto3.Session())
    assert pulled(asked) == []


def test_any_other_is(asked: Path) -> None:
    pull.require_image("python:3.11", boto3.Session())
    assert pulled(asked) == ["pull --quiet -- python:3.11"]


def test_amazons_registries_are_asked_with_the_users_account(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = boto3.Session("KEY", "SECRET", region_name="us-east-1")
    client = session.client("ecr")
    token = {"authorizationToken": base64.b64encode(b"AWS:pass:word").decode()}
    with Stubber(client) as stub:
        stub.add_response(
            "get_authorization_token", {"authorizationData": [token]}, {"registryIds": [ECR.partition(".")[0]]}
        )
        regions: list[Any] = []
        monkeypatch.setattr(session, "client", lambda _name, region_name: regions.append(region_name) or client)
        pull.require_image(f"{ECR}/training:2", session)
    assert regions == ["eu-west-1"]
    assert pulled(asked) == [
        f"login --username AWS --password-stdin {ECR} pass:word",
        f"pull --quiet -- {ECR}/training:2",
    ]


def test_what_can_not_be_had_is_told_with_the_remedy(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DockerError, match=r"absent is not on .* pull access denied\. Build one: `smddp image build`"):
        pull.require_image("absent", boto3.Session())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(DockerError, match="can't be pulled: Unable to locate credentials"):
        pull.require_image(f"{ECR}/training:2", boto3.Session())
    assert "login" not in asked.read_text()
