"""``make dist``: the wheel of a commit is the same bytes wherever it is made, and holds what users need."""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def make_dist(directory: Path, *, umask: int, **variables: str) -> Path:
    environment = os.environ | {"TMPDIR": str(directory)} | variables
    command = ["make", "dist", f"DIST={directory / 'dist'}"]
    made = subprocess.run(
        command, cwd=ROOT, env=environment, umask=umask, capture_output=True, text=True, check=False, timeout=300
    )
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = (directory / "dist").glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in made.stdout
    return wheel


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_wheels_of_a_commit_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
    one = make_dist(tmp_path / "one", umask=0o022, TZ="UTC")
    another = make_dist(tmp_path / "another", umask=0o077, TZ="Asia/Tokyo")
    assert one.read_bytes() == another.read_bytes()
    with zipfile.ZipFile(one) as archive:
        names = set(archive.namelist())
    assert {"smddp/py.typed", "estimators/entrypoints/char_gpt.py", "estimators/docker/recipe/Dockerfile"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("tests/")]
