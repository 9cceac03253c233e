from __future__ import annotations

import pytest

from estimators.docker.docker_program import DockerError, docker, require_engine


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
