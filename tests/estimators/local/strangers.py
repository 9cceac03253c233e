"""Another user of this machine, who tries what the system lets him; for tests that are marked `root`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

STRANGER = 65534

_BECOME = """
stranger=$0 closed=$1 python=$2
shift 2
if [ "$closed" ]; then
    mount --bind "$python" /mnt
    mount -t tmpfs -o mode=755 none "$closed"
    mkdir -p "$python"
    mount --move /mnt "$python"
fi
exec setpriv --reuid="$stranger" --regid="$stranger" --clear-groups -- "$@"
"""
"""This Python may lie in a directory that is closed to others, such as root's home: what they see of it is Python."""


def run_as_stranger(code: str, *arguments: Any, **environment: str) -> Any:
    """Run a program as another user: it finds its `arguments`, and leaves its answer in `answer`.

    Returns:
        The answer.
    """
    program = (
        f"import json, sys\narguments = json.loads(sys.argv[1])\n{textwrap.dedent(code)}\nprint(json.dumps(answer))"
    )
    python = Path(sys.base_prefix)
    closed = next((str(parent) for parent in reversed(python.parents) if not parent.stat().st_mode & 0o001), "")
    run = subprocess.run(
        [
            *("unshare", "--mount", "sh", "-ec", _BECOME, str(STRANGER), closed, str(python)),
            *(sys.executable, "-c", program, json.dumps(arguments)),
        ],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


def openable(paths: Iterable[Path | str]) -> list[str]:
    """Which files, directories and sockets another user can read, list or connect to."""
    return run_as_stranger(
        """
        import os, socket, stat
        def opens(path):
            try:
                if stat.S_ISSOCK(os.stat(path).st_mode):
                    socket.socket(socket.AF_UNIX).connect(path)
                else:
                    os.read(os.open(path, os.O_RDONLY), 1)
            except IsADirectoryError:
                return True
            except OSError:
                return False
            return True
        answer = [path for path in arguments[0] if opens(path)]
        """,
        [str(path) for path in paths],
    )
