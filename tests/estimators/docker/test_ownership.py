"""What a container's root leaves in a directory that was there before it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from estimators.docker.docker_program import docker
from estimators.docker.mount import bind
from tests.docker.images import build_images

SOMEBODY = 1234

GIVE_BACK = """
import os, sys
from pathlib import Path
from estimators.docker import ownership
os.getuid, os.getgid = (lambda: int(sys.argv[4])), (lambda: int(sys.argv[4]))
ownership.give_back([Path(sys.argv[1])], sys.argv[2], since=Path(sys.argv[3]))
"""


@pytest.mark.docker
def test_only_what_the_containers_made_becomes_the_users(tmp_path: Path) -> None:
    image = build_images().smddp
    place, stamp = tmp_path / 'at 12:30, "here"', tmp_path / "stamp"
    place.mkdir()
    mount = f"--mount={bind(str(place), '/place')}"
    run = ("run", "--rm", "--network", "none", "--entrypoint", "sh", mount, image, "-c")
    docker(*run, "mkdir -m 700 /place/before && touch /place/before/file && chmod 755 /place/before")
    stamp.touch()
    docker(*run, "mkdir -m 700 /place/new && ln -s ../before /place/new/link && cp -p /place/before/file /place/new/")
    user = SOMEBODY if os.getuid() == 0 else os.getuid()
    command = [sys.executable, "-c", GIVE_BACK, str(place), image, str(stamp), str(user)]
    subprocess.run(command, check=True)
    owners = {str(path.relative_to(place)): path.lstat().st_uid for path in place.rglob("*")}
    assert owners == {"before": 0, "before/file": 0, "new": user, "new/link": user, "new/file": user}
    docker(*run, "rm -r /place/before /place/new")
