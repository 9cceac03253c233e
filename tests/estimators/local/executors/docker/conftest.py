"""A small image, and clusters of containers of it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from estimators.local.executors import ClusterSpec
from estimators.local.executors.docker import Docker, DockerExecutor
from estimators.local.executors.docker.executor import DockerCluster
from tests.docker.images import find_base


@pytest.fixture(scope="session")
def image() -> str:
    """One with a shell and Python 3."""
    return find_base()


@pytest.fixture
def job() -> str:
    """A name by which what a test made is found again."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def prepare(image: str, job: str, tmp_path: Path) -> Callable[..., DockerCluster]:
    """Clusters, with a directory for each host."""

    def prepare_cluster(*hosts: str, network_isolation: bool = False, **limits: object) -> DockerCluster:
        roots = {host: tmp_path / host for host in hosts or ("algo-1",)}
        for root in roots.values():
            (root / "output").mkdir(parents=True)
        spec = ClusterSpec(name=job, image=image, roots=roots, network_isolation=network_isolation)
        return DockerExecutor(Docker(**limits)).cluster(spec)  # type: ignore[arg-type]

    return prepare_cluster


@pytest.fixture
def enter(prepare: Callable[..., DockerCluster]) -> Iterator[Callable[..., DockerCluster]]:
    """Clusters that run; they are left in the end."""
    with ExitStack() as stack:
        yield lambda *hosts, **settings: stack.enter_context(prepare(*hosts, **settings))
