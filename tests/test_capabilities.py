"""A test of what a machine may lack can be required, so that it can't vanish without a word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import CAPABILITIES

ROOT = Path(__file__).parents[1]


def test_each_capability_is_a_marker(pytestconfig: pytest.Config) -> None:
    markers = {marker.partition(":")[0] for marker in pytestconfig.getini("markers")}
    assert markers >= set(CAPABILITIES)


def test_the_continuous_integration_requires_each() -> None:
    required = (ROOT / ".ci" / "run").read_text().partition("SMDDP_REQUIRE=")[2].split()[0]
    assert set(required.split(",")) == set(CAPABILITIES)


@pytest.mark.namespaces  # of a user whose number is not 0
@pytest.mark.slow
def test_what_only_root_can_do_fails_for_others_where_it_is_required() -> None:
    test = "tests/test_capabilities.py"
    run = subprocess.run(
        ["unshare", "--user", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", test],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "SMDDP_REQUIRE": "root"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "root is required: only root, with mounts of its own, can act as another user" in run.stderr
