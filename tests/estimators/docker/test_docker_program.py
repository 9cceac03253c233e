"""The docker program, its options, and images that are not on this machine yet."""

from __future__ import annotations

import base64
import uuid
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.stub import Stubber

from estimators.docker.docker_program import DockerError, bind, docker, require_engine, require_image
from tests.docker.images import find_base


def test_says_what_to_install_when_there_is_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DockerError, match=r"no `docker` program on PATH.*docs.docker.com"):
        require_engine()


@pytest.mark.docker
def test_says_what_to_do_when_no_engine_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(DockerError, match=r"No Docker engine answers: .*/nowhere/docker.sock.*group docker"):
        require_engine()


@pytest.mark.docker
def test_an_error_holds_the_words_of_docker() -> None:
    require_engine()
    with pytest.raises(DockerError, match=r"docker inspect failed: .*No such object: smddp-nothing"):
        docker("inspect", "smddp-nothing")


@pytest.mark.docker
@pytest.mark.parametrize("name", ["plain", "a,b.csv", 'x,readonly "y"', "10:30, train.csv"])
def test_docker_takes_any_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("seen")
    target = f"/opt/ml/input/data/train/{name}"
    container = f"smddp-test-{uuid.uuid4().hex[:12]}"
    alone = ("run", "--rm", "--name", container, "--network", "none", f"--mount={bind(str(file), target)}")
    assert docker(*alone, find_base(), "cat", target, timeout=60) == "seen"


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
    require_image("here", boto3.Session())
    assert pulled(asked) == []


def test_any_other_is(asked: Path) -> None:
    require_image("python:3.11", boto3.Session())
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
        require_image(f"{ECR}/training:2", session)
    assert regions == ["eu-west-1"]
    assert pulled(asked) == [
        f"login --username AWS --password-stdin {ECR} pass:word",
        f"pull --quiet -- {ECR}/training:2",
    ]


def test_what_can_not_be_had_is_told_with_the_remedy(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DockerError, match=r"absent is not on .* pull access denied\. Build one: `smddp image build`"):
        require_image("absent", boto3.Session())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(DockerError, match="can't be pulled: Unable to locate credentials"):
        require_image(f"{ECR}/training:2", boto3.Session())
    assert "login" not in asked.read_text()
