"""A directory or a file of this machine in a container."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from estimators.docker.docker_program import docker
from estimators.docker.mount import bind
from tests.docker.images import find_base


@pytest.mark.docker
@pytest.mark.parametrize("name", ["plain", "a,b.csv", 'x,readonly "y"', "10:30, train.csv"])
def test_docker_takes_any_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text("seen")
    target = f"/opt/ml/input/data/train/{name}"
    container = f"smddp-test-{uuid.uuid4().hex[:12]}"
    alone = ("run", "--rm", "--name", container, "--network", "none", f"--mount={bind(str(file), target)}")
    assert docker(*alone, find_base(), "cat", target, timeout=60) == "seen"
