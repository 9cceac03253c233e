from __future__ import annotations

from collections.abc import Iterator

import pytest

from estimators.local import Docker, LocalSageMaker
from tests.docker.images import Images, build_images
from tests.docker.proof import Proof


@pytest.fixture(scope="session")
def images() -> Images:
    """Both training images, built from the sources as they are now."""
    return build_images()


@pytest.fixture(scope="session")
def proof(tmp_path_factory: pytest.TempPathFactory) -> Proof:
    """What the jobs of this test run are compared by."""
    return Proof.of_this_run(tmp_path_factory)


@pytest.fixture(scope="session")
def platform(images: Images) -> Iterator[LocalSageMaker]:
    """One whose hosts are containers."""
    with LocalSageMaker(executor=Docker(), grace_seconds=120) as platform:
        yield platform
