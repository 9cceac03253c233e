from __future__ import annotations

import pytest

from tests.docker.images import Images, build_images


@pytest.fixture(scope="session")
def images() -> Images:
    """Both training images, built from the sources as they are now."""
    return build_images()
