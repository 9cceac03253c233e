"""smddp's requirements as wheels in the bundle: a container without a network can't install them from an index.

pip downloads them here for the image's Python and processor. The user's own requirements.txt is not included: it may
need torch, which is larger than all the others, and in the image already.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

from estimators.errors import EstimatorError
from estimators.source_code.source import PACKAGE, WHEELS, package_requirements

_ARM = re.compile(r"ml\.([a-z]+\d+g[a-z]*|p6e-gb\d+)\.")
"""Instance types with Arm processors: AWS's Graviton, NVIDIA's Grace."""
_GLIBC = range(17, 29)
"""The minor versions of glibc 2 whose wheels run in the images: AWS's images have 2.31 or newer."""
_SECONDS = 600
_SHOWN = 3


def package_wheels(py_version: str, instance_types: Collection[str]) -> dict[str, bytes]:
    """Download the wheels of smddp's requirements; return them by their names in the bundle.

    `py_version` is the image's Python as in ``py312``; the instance types decide the processors. Raise EstimatorError
    if the version is invalid, or pip can't get a wheel.
    """
    if not (version := re.fullmatch(r"py(\d)(\d+)", py_version)):
        raise EstimatorError(
            f"py_version={py_version!r} is no version of Python with wheels. Give one such as 'py312'."
        )
    with tempfile.TemporaryDirectory(prefix="smddp-wheels-") as directory:
        for processor in sorted({"aarch64" if _ARM.match(name) else "x86_64" for name in instance_types}):
            _download(f"{version[1]}.{version[2]}", processor, directory)
        return {f"{WHEELS}/{path.name}": path.read_bytes() for path in sorted(Path(directory).glob("*.whl"))}


def _download(version: str, processor: str, directory: str) -> None:
    platforms = [f"manylinux_2_{minor}_{processor}" for minor in reversed(_GLIBC)] + [f"manylinux2014_{processor}"]
    command = [
        *(sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet"),
        *("--only-binary=:all:", "--implementation", "cp", "--python-version", version, "--dest", directory),
        *(word for platform in platforms for word in ("--platform", platform)),
        *(f"{requirement.name}{requirement.specifier}" for requirement in package_requirements()),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        said = [f"pip took more than {_SECONDS} s"]
    else:
        if done.returncode == 0:
            return
        lines = (done.stderr or done.stdout).strip().splitlines()
        said = [line for line in lines if "ERROR" in line] or lines
    raise EstimatorError(
        f"enable_network_isolation: what {PACKAGE} needs can't be had as wheels for Python {version} on {processor}: "
        f"{' '.join(said[-_SHOWN:])}. Let pip here reach an index (PIP_INDEX_URL), or use an image that has it, and "
        f"code that brings its own {PACKAGE}."
    )
