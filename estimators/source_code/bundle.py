"""A job's code as a directory, for the SDK to upload or mount.

The bundle brings smddp to a container that lacks it: the package itself, and its light requirements in the bundle's
requirements.txt. The user's directory is never changed: the bundle is a temporary copy. `contents` chooses its files,
by the .smddpignore that `tree` reads.

A container without a network can't install the requirements from an index: it gets them as wheels, which pip downloads
here for the image's Python and processor. The user's own requirements.txt is not included: it may need torch, which is
larger than all the others, and in the image already.
"""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from estimators.errors import EstimatorError
from estimators.source_code.contents import Contents
from estimators.source_code.source import PACKAGE, WHEELS, SourceCode, package_requirements

logger = logging.getLogger(__name__)

_ARM = re.compile(r"ml\.([a-z]+\d+g[a-z]*|p6e-gb\d+)\.")
"""Instance types with Arm processors: AWS's Graviton, NVIDIA's Grace."""
_GLIBC = range(17, 29)
"""The minor versions of glibc 2 whose wheels run in the images: AWS's images have 2.31 or newer."""
_SECONDS = 600
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A source that the SDK can upload."""

    source: SourceCode
    directory: Path | None
    """The temporary copy, or None if the source itself is used."""

    secrets: tuple[str, ...] = ()
    """The paths left out because they look like secrets."""

    def remove(self) -> None:
        """Delete the copy, if there is one."""
        if self.directory is not None:
            shutil.rmtree(self.directory, ignore_errors=True)


def stage(
    source: SourceCode,
    *,
    into: Path | None = None,
    without: Sequence[Path] = (),
    more: Mapping[str, bytes] = MappingProxyType({}),
) -> Bundle:
    """Bundle code that imports smddp with the installed package; other code without excluded files is its own bundle.

    `into` is a directory to create for the bundle in any case: the containers of the SDK's Local Mode write to the code
    that is mounted. `without` are paths in the source that are not code, `more` additional files by name. Raise
    EstimatorError if the code can't be copied, or a ``.smddpignore`` can't be read.
    """
    if not source.is_local:
        if source.entry_point is not None:
            tell_of_code_elsewhere()
        return Bundle(source=source, directory=None)
    contents = Contents.of(source, without, more)
    if into is None and contents.is_source:
        return Bundle(source=source, directory=None)
    if into is not None:
        into.mkdir()
    directory = into or Path(tempfile.mkdtemp(prefix="smddp-source-"))
    try:
        for name, file in contents.files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(file, bytes):
                (directory / name).write_bytes(file)
            else:
                shutil.copy2(file, directory / name)
    except BaseException as fault:
        shutil.rmtree(directory, ignore_errors=True)
        if isinstance(fault, OSError):
            raise EstimatorError(f"source_dir, dependencies: the code can't be copied: {fault}") from fault
        raise
    staged = SourceCode(
        entry_point=contents.entry_point,
        source_dir=str(directory),
        dependencies=(),
    )
    return Bundle(source=staged, directory=directory, secrets=contents.secrets)


def tell_of_code_elsewhere() -> None:
    """Log that smddp is not added to code outside this machine."""
    logger.info(
        "the code is not on this machine, so %s is not added to it: if the script imports %s, have it in the archive "
        "or repository, or in the image",
        PACKAGE,
        PACKAGE,
    )


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
