from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from estimators.docker.compose import find_compose
from estimators.docker.docker_program import DockerError


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on PATH, but for what a shell needs."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def make_docker(programs: Path, compose: str | None) -> None:
    """A `docker` with Compose of some version as its plugin, or without."""
    answer = f"echo {compose}" if compose else "echo 'docker: unknown command: docker compose' >&2; exit 1"
    make(programs / "docker", f'[ "$*" = "compose version --short" ] || exit 2\n{answer}')


def make(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


@pytest.mark.parametrize("version", ["2.29.1", "v2.17.0", "5.0.1"])
def test_the_plugin_is_found_whatever_its_version(programs: Path, version: str) -> None:
    make_docker(programs, version)
    make(programs / "docker-compose", "echo 1.29.2")
    compose = find_compose()
    assert compose.command == (str(programs / "docker"), "compose")
    assert (compose.version, compose.knows_devices) == (version, True)


def test_the_program_is_found_where_there_is_no_plugin(programs: Path) -> None:
    make_docker(programs, None)
    make(programs / "docker-compose", "echo 1.29.2")
    compose = find_compose()
    assert compose.command == (str(programs / "docker-compose"),)
    assert (compose.version, compose.knows_devices) == ("1.29.2", False)


def test_a_broken_program_is_none(programs: Path) -> None:
    make_docker(programs, None)
    make(programs / "docker-compose", "echo Traceback; exit 1")
    with pytest.raises(DockerError, match=r"Docker Compose is not installed. Install docker-compose-plugin"):
        find_compose()


def test_without_docker_that_is_what_is_missing(programs: Path) -> None:
    with pytest.raises(DockerError, match="no `docker` program on PATH"):
        find_compose()


@pytest.mark.docker
def test_the_one_of_this_machine_is_found() -> None:
    compose = find_compose()
    assert shutil.which(compose.command[0]) == compose.command[0]
    assert compose.version.lstrip("v")[0].isdigit()
