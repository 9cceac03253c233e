"""Two programs in front of PATH while the SDK runs a job, so that any Compose serves it, and ours looks after the job.

The SDK takes ``docker compose`` if its version has "v2" in it, and else the program ``docker-compose``. The shim
for `docker` passes everything on but that one question; the shim for ``docker-compose`` is ``compose_up``.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from estimators.docker.compose import Compose
from estimators.docker.docker_program import program
from estimators.docker.search_path import SHIM_MARK, search_path

# PATH is the real one again for what they call: a wrapper that looks for `docker` there would find its caller.
_DOCKER = """#!/bin/sh
[ "$1 $2" = "compose version" ] && exit 1
PATH={path} exec {docker} "$@"
"""

_COMPOSE = """#!/bin/sh
PATH={path} exec {python} -I -c {program} {compose} -- "$@"
"""

# Not by PYTHONPATH: Compose 1 is a Python program, too.
_PROGRAM = """import sys
sys.path.append({packages!r})
from estimators.local_mode.compose_up import main
sys.exit(main(sys.argv[1:]))"""

_path_changes = Lock()


@contextmanager
def path_shims(directory: Path, compose: Compose) -> Iterator[None]:
    """Put both programs in front of this process's PATH for a block.

    Args:
        directory: Where they are made.
        compose: What the shim for ``docker-compose`` runs.
    """
    packages = Path(__file__).absolute().parents[2]
    path = shlex.quote(search_path())
    texts = {
        "docker": _DOCKER.format(path=path, docker=shlex.quote(program())),
        "docker-compose": _COMPOSE.format(
            path=path,
            python=shlex.quote(sys.executable),
            program=shlex.quote(_PROGRAM.format(packages=str(packages))),
            compose=shlex.join(compose.command),
        ),
    }
    directory.mkdir()
    (directory / SHIM_MARK).touch()
    for name, text in texts.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    with _path_changes:
        os.environ["PATH"] = os.pathsep.join([str(directory), os.environ.get("PATH", os.defpath)])
    try:
        yield
    finally:
        # Only ours goes: a job in another thread may have put its own there since.
        with _path_changes:
            entries = os.environ["PATH"].split(os.pathsep)
            entries.remove(str(directory))
            os.environ["PATH"] = os.pathsep.join(entries)
