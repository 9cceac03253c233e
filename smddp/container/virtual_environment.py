"""The virtual environment of a job: it sees the packages of its interpreter, and keeps what the job installs.

``python -m smddp.container.virtual_environment DIRECTORY`` makes one for the Python that runs it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path


def make_environment(directory: Path) -> Path:
    """Replace a directory by a virtual environment that sees this interpreter's packages; return its interpreter.

    The environment has no pip.
    """
    import venv  # only jobs with new requirements need it

    venv.EnvBuilder(symlinks=True, clear=True).create(directory)
    python = directory / "bin" / "python"
    own = Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(directory)}))
    shared = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    # addsitedir, unlike a plain path, follows the .pth files there: editable installs.
    own.joinpath("shared.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in shared))
    return python


def activated(environ: Mapping[str, str], python: str) -> dict[str, str]:
    """Return an environment whose PATH has this interpreter, and the scripts beside it, first."""
    programs = str(Path(python).parent)
    others = environ.get("PATH", "").split(os.pathsep)
    if others[0] == programs:
        return dict(environ)
    return {**environ, "PATH": os.pathsep.join([programs, *filter(None, others)])}


if __name__ == "__main__":
    make_environment(Path(sys.argv[1]))
