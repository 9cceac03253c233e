"""A Python that has the SageMaker SDK V3 alone: V2 and V3 can't stand in one environment.

It is a virtual environment whose packages are links to those of this one, V2's left out, and to those in
``.venv/sdk-v3``.
"""

from __future__ import annotations

import fnmatch
import sys
import sysconfig
import venv
from pathlib import Path

SDK_V3 = Path(sys.prefix) / "sdk-v3"

_V2 = ("sagemaker", "sagemaker-*", "sagemaker_core", "sagemaker_core-*")


def python_with_sdk_v3(directory: Path) -> str:
    """Make the environment in a directory that is not there yet; return its Python."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(directory)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(directory), "platbase": str(directory)}))
    kept = [
        path
        for path in Path(sysconfig.get_path("purelib")).iterdir()
        if not any(fnmatch.fnmatch(path.name, pattern) for pattern in _V2)
    ]
    for path in [*kept, *SDK_V3.iterdir()]:
        (packages / path.name).symlink_to(path)
    return str(directory / "bin" / "python")
