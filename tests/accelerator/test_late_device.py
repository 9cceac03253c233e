"""The tests of this directory, each file in a process that has the late device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.accelerator import late_device

HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("test_*.py") if path.name != Path(__file__).name)


@pytest.mark.slow
@pytest.mark.compiler
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", FILES)
def test_the_tests_pass_on_the_late_device(file: str, tmp_path: Path) -> None:
    environ = {name: value for name, value in late_device.environment().items() if name != "SMDDP_REQUIRE"}
    options = ["-q", "-n0", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'tests'}"]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", *options, HERE / file],
        env=environ,
        cwd=late_device.ROOT,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert " passed" in told.stdout
