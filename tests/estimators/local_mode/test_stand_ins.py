"""The programs in front of PATH, asked by the SDK itself."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from sagemaker.local.image import _SageMakerContainer

from estimators.docker.compose import Compose, find_compose
from estimators.local_mode.stand_ins import stand_ins


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in front of PATH, with a docker that has a plugin too new for the SDK to see."""
    directory = tmp_path / "bin"
    directory.mkdir()
    docker = directory / "docker"
    docker.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '"compose version --short") echo 5.0.1;;\n'
        '"compose version") echo Docker Compose version v5.0.1;;\n'
        '*) echo "docker ran: $*";;\n'
        "esac\n"
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(directory), "/usr/bin", "/bin"]))
    return directory


def sdk_finds() -> list[str]:
    prefix: list[str] = _SageMakerContainer._get_compose_cmd_prefix()
    return prefix


@pytest.mark.parametrize("plugin", ["v2.29.1", "v5.0.1"])
def test_the_sdk_takes_ours_whatever_compose_there_is(programs: Path, tmp_path: Path, plugin: str) -> None:
    docker = programs / "docker"
    docker.write_text(docker.read_text().replace("v5.0.1", plugin))
    with stand_ins(tmp_path / "ours", find_compose()):
        assert sdk_finds() == ["docker-compose"]
        assert output("/bin/sh", "-c", "command -v docker-compose") == str(tmp_path / "ours" / "docker-compose")


def test_other_commands_and_other_files_go_to_the_real_programs(programs: Path, tmp_path: Path) -> None:
    compose = Compose(command=(str(programs / "docker"), "compose"), version="5.0.1")
    with stand_ins(tmp_path / "it's ours", compose):
        assert output("docker", "images", "-q", "an image") == "docker ran: images -q an image"
        file = str(tmp_path / "compose.yaml")  # lies in no job's directory
        assert output("docker-compose", "-f", file, "up", "a b") == f"docker ran: compose -f {file} up a b"


def test_path_is_as_it_was_and_keeps_what_others_put_there(programs: Path, tmp_path: Path) -> None:
    compose = Compose(command=("/compose",), version="1")
    before = os.environ["PATH"]
    with stand_ins(tmp_path / "ours", compose):
        os.environ["PATH"] = f"/another{os.pathsep}{os.environ['PATH']}"
    assert os.environ["PATH"] == f"/another{os.pathsep}{before}"


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
