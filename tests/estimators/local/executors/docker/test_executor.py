"""Which local image stands for a TrainingImage, and what is said if none does."""

from __future__ import annotations

import os

import pytest

from estimators.docker.docker_program import DockerError, docker
from estimators.local.executors import NoImageError
from estimators.local.executors.docker import Docker, executor
from estimators.local.executors.docker.executor import find_image

AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.3.0-cpu-py311"


@pytest.mark.parametrize(
    ("patterns", "pattern"),
    [
        ({"*/pytorch-training:*": "a", "*": "b"}, "*/pytorch-training:*"),
        ({"*": "b", "*/pytorch-training:*": "a"}, "*"),
        ({"*:2.4*": "a", "pytorch-training:*": "b"}, None),
        ({}, None),
    ],
)
def test_the_first_pattern_that_matches_counts(patterns: dict[str, str], pattern: str | None) -> None:
    assert Docker(images=patterns).pattern_for(AWS) == pattern


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ({"cpus": 0}, "from 0.01 to"),
        ({"cpus": float("nan")}, "from 0.01 to"),
        ({"cpus": float("inf")}, "cores of this machine"),
        ({"cpus": (os.cpu_count() or 1) + 1}, "cores of this machine"),
        ({"memory": "1b"}, "at least '6m'"),
        ({"memory": "6143k"}, "at least '6m'"),
        ({"memory": "lots"}, "'512m' or '8g'"),
        ({"memory": "0g"}, "'512m' or '8g'"),
    ],
)
def test_a_limit_that_is_none_is_refused(setting: dict[str, object], allowed: str) -> None:
    with pytest.raises(ValueError, match=allowed):
        Docker(**setting)  # type: ignore[arg-type]


@pytest.mark.docker
def test_a_mapped_image_and_one_that_is_here_are_found_by_their_id(image: str) -> None:
    identity = docker("image", "inspect", "--format", "{{.Id}}", image)
    assert find_image(Docker(images={"*/pytorch-training:*": image}), AWS) == identity
    assert find_image(Docker(images={"elsewhere/*": "nothing"}), image) == identity


@pytest.mark.docker
def test_an_image_that_nothing_maps_is_refused_with_how_to_map_it(image: str) -> None:
    with pytest.raises(NoImageError) as refusal:
        find_image(Docker(images={"elsewhere/*": image}), AWS)
    said = str(refusal.value)
    assert said.startswith(f"{AWS} is no image on this machine, and none of the patterns 'elsewhere/*' matches it.")
    assert f"`smddp local up --docker --image '{AWS}=IMAGE'`" in said
    assert "Images here: " in said


@pytest.mark.docker
def test_a_mapping_to_an_image_that_is_not_here_says_which(image: str) -> None:
    with pytest.raises(NoImageError, match=r"is mapped \(by '\*'\) to no-such-image:1, and there is no such image"):
        find_image(Docker(images={"*": "no-such-image:1"}), AWS)
    with pytest.raises(NoImageError, match=r"No/Such:Image is no image on this machine, and nothing maps it\."):
        find_image(Docker(), "No/Such:Image")


@pytest.mark.docker
@pytest.mark.parametrize("name", ["--help", "-x", "--format=sha256", "--"])
def test_a_name_is_never_taken_for_an_option(name: str) -> None:
    with pytest.raises(NoImageError, match="is no image on this machine"):
        find_image(Docker(), name)


def test_an_answer_that_is_no_id_is_not_taken_for_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "docker", lambda *_, timeout: "Usage: docker")
    with pytest.raises(DockerError, match=r"the ID of .*, it said 'Usage: docker'"):
        find_image(Docker(), AWS)


def test_a_docker_that_fails_otherwise_is_not_taken_for_a_missing_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: str, timeout: float | None = None) -> str:
        raise DockerError("docker image failed: Cannot connect to the Docker daemon")

    monkeypatch.setattr(executor, "docker", fail)
    with pytest.raises(DockerError, match="Cannot connect"):
        find_image(Docker(), AWS)
