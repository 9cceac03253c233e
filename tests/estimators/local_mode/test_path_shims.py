"""The programs in front of PATH, asked by the SDK itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from sagemaker.local.image import _SageMakerContainer

from estimators.docker.compose import Compose, find_compose
from estimators.local_mode.path_shims import path_shims


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
    with path_shims(tmp_path / "ours", find_compose()):
        assert sdk_finds() == ["docker-compose"]
        assert output("/bin/sh", "-c", "command -v docker-compose") == str(tmp_path / "ours" / "docker-compose")


def test_other_commands_and_other_files_go_to_the_real_programs(programs: Path, tmp_path: Path) -> None:
    compose = Compose(command=(str(programs / "docker"), "compose"), version="5.0.1")
    with path_shims(tmp_path / "it's ours", compose):
        assert output("docker", "images", "-q", "an image") == "docker ran: images -q an image"
        file = str(tmp_path / "compose.yaml")  # lies in no job's directory
        assert output("docker-compose", "-f", file, "up", "a b") == f"docker ran: compose -f {file} up a b"


def test_path_is_as_it_was_and_keeps_what_others_put_there(programs: Path, tmp_path: Path) -> None:
    compose = Compose(command=("/compose",), version="1")
    before = os.environ["PATH"]
    with path_shims(tmp_path / "ours", compose):
        os.environ["PATH"] = f"/another{os.pathsep}{os.environ['PATH']}"
    assert os.environ["PATH"] == f"/another{os.pathsep}{before}"


def test_jobs_in_threads_do_not_take_each_other_for_docker(programs: Path, tmp_path: Path) -> None:
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(path_shims(tmp_path / "first", find_compose()))
        compose = find_compose()
        assert compose.command == (str(programs / "docker"), "compose")
        second.enter_context(path_shims(tmp_path / "second", compose))
        first.close()
        shutil.rmtree(tmp_path / "first")
        assert find_compose() == compose
        assert output("docker", "images") == "docker ran: images"
        assert output("docker-compose", "version", "--short") == "5.0.1"


def test_a_wrapper_that_looks_for_docker_does_not_find_its_caller(programs: Path, tmp_path: Path) -> None:
    wrapper = programs / "docker"
    wrapper.write_text("#!/bin/sh\ncommand -v docker\n")
    compose = Compose(command=(str(wrapper),), version="1")
    with path_shims(tmp_path / "ours", compose):
        assert output("docker-compose", "up") == str(wrapper)
        assert output("docker", "images") == str(wrapper)


def test_the_users_modules_are_not_taken_for_pythons(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('not the real one')")
    monkeypatch.chdir(tmp_path)
    with path_shims(tmp_path / "ours", find_compose()):
        assert output("docker-compose", "images") == "docker ran: compose images"


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
