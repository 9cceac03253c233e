"""A job's code as it is sent: its files, their archive, and a directory of them for the SDK to upload or mount.

The bundle brings smddp to a container that lacks it, if the code imports it: the package itself, and its light
requirements in the bundle's requirements.txt. The user's directory is never changed: the directory is a temporary copy.
`tree` leaves files out, by the .smddpignore.

The archive's bytes depend only on the files' names, contents and executable bits, and on the names of empty
directories. So the same code has the same SHA-256 for every sender, at any time. zlib's version also affects the bytes:
after an update of zlib the same code is uploaded once more.

A container without a network can't install the requirements from an index: it gets them as wheels, which pip downloads
here for the image's Python and processor. The user's own requirements.txt is not included: it may need torch, which is
larger than all the others, and in the image already.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import BinaryIO, cast

from estimators.errors import EstimatorError
from estimators.source_code.source import (
    PACKAGE,
    REQUIREMENTS,
    WHEELS,
    SourceCode,
    needs_package,
    package_directory,
    package_requirements,
    with_requirements,
)
from estimators.source_code.tree import CACHE, Tree
from smddp.display_text import shown_names

logger = logging.getLogger(__name__)

_ARM = re.compile(r"ml\.([a-z]+\d+g[a-z]*|p6e-gb\d+)\.")
"""Instance types with Arm processors: AWS's Graviton, NVIDIA's Grace."""
_GLIBC = range(17, 29)
"""The minor versions of glibc 2 whose wheels run in the images: AWS's images have 2.31 or newer."""
_SECONDS = 600
_QUOTED = 3
_SHOWN_PATHS = 10
"""Most left-out paths that the log names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """The files of a bundle."""

    files: Mapping[str, Path | bytes | None]
    """Each file's path, its content if generated, or None for an empty directory, by its name in the bundle."""
    entry_point: str
    """The script's name in the bundle."""
    secrets: tuple[str, ...]
    """The paths left out because they look like secrets."""
    is_source: bool
    """Whether the bundle equals the source directory, apart from caches."""

    @classmethod
    def of(
        cls, source: SourceCode, without: Sequence[Path] = (), more: Mapping[str, bytes] = MappingProxyType({})
    ) -> Contents:
        """Return the bundle of code on this machine, without the paths `without`, and with the files `more`.

        Raise EstimatorError if a file can't be read, or two files need the same name.
        """
        trees = {path: Tree.of(path, without) if without else source.tree(path) for path in source.directories}
        stays = [f"{tree.root / path}" for tree in trees.values() for path in tree.left_out]
        files: dict[str, Path | bytes | None] = {}
        if source.source_dir is not None:
            files |= _below(trees[Path(source.source_dir)])
        else:
            files[source.program] = source.script
        for dependency in source.dependencies:
            name, path = source.name_in_bundle(dependency), Path(dependency)
            files |= _below(trees[path], name) if path in trees else {name: path}
        if needs := needs_package(source):
            package = package_directory()
            files |= {f"{PACKAGE}/{path.relative_to(package).as_posix()}": path for path in _files_of(package)}
            files[REQUIREMENTS] = with_requirements(
                _text(files.get(REQUIREMENTS) or b""),
                package_requirements(),
                from_wheels=any(name.startswith(f"{WHEELS}/") for name in more),
            ).encode()
        if taken := sorted(files.keys() & more.keys()):
            raise EstimatorError(
                f"source_dir, dependencies: smddp needs {taken[0]} in the bundle itself. Rename yours."
            )
        files |= more
        _require_outputs(files)
        is_source = not needs and not more and all(path.endswith(CACHE) for path in stays)
        if told := [path for path in stays if not path.endswith(CACHE)]:
            logger.info("left out of the bundle: %s", shown_names(told, most=_SHOWN_PATHS))
        return cls(
            files=files,
            entry_point=source.program,
            secrets=tuple(f"{tree.root / path}" for tree in trees.values() for path in tree.secrets),
            is_source=is_source,
        )


def _below(tree: Tree, name: str = "") -> dict[str, Path | None]:
    files = {str(PurePosixPath(name, path)): tree.root / path for path in tree.files}
    return {**files, **{str(PurePosixPath(name, path)): None for path in tree.empty}}


def _files_of(package: Path) -> Iterator[Path]:
    return (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def _text(file: Path | bytes) -> str:
    try:
        return (file if isinstance(file, bytes) else file.read_bytes()).decode()
    except (OSError, UnicodeDecodeError) as fault:
        raise EstimatorError(f"source_dir, dependencies: {file!s} can't be read as text: {fault}") from fault


def _require_outputs(files: Mapping[str, object]) -> None:
    for name in files:
        parents = map(str, PurePosixPath(name).parents)
        if above := next((path for path in parents if files.get(path) is not None), None):
            raise EstimatorError(
                f"source_dir, dependencies: {above} would be a file in the bundle, and the directory of {name}. Rename "
                "one of the two."
            )


_TIME = 315_532_800
"""The modification time of all files: the start of 1980, the earliest that ZIP, and so a wheel, can hold."""
_FILE, _PROGRAM = 0o644, 0o755
_PIECE = 2**20
_LEVEL = 6
"""gzip's level; 9 takes twice as long and saves one per cent."""


def write_archive(files: Mapping[str, Path | bytes | None], target: BinaryIO) -> str:
    """Write an archive to an empty file open for reading and writing; return its SHA-256 in hexadecimal digits.

    `files` is `Contents.files`. Raise EstimatorError if a file can't be read, or the archive can't be written.
    """
    try:
        with (
            gzip.GzipFile(filename="", mode="wb", fileobj=target, mtime=0, compresslevel=_LEVEL) as packed,
            tarfile.open(fileobj=cast(BinaryIO, packed), mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in sorted({*files, *_directories(files)}):
                _add(archive, name, files.get(name))
    except OSError as fault:
        raise EstimatorError(f"source_dir, dependencies: the code can't be bundled: {fault}") from fault
    target.seek(0)
    digest = hashlib.sha256()
    while piece := target.read(_PIECE):
        digest.update(piece)
    target.seek(0)
    return digest.hexdigest()


def _directories(files: Mapping[str, object]) -> set[str]:
    return {str(path) for name in files for path in PurePosixPath(name).parents} - {"."}


def _add(archive: tarfile.TarFile, name: str, file: Path | bytes | None) -> None:
    """Add a file, or a directory if `file` is None."""
    member = tarfile.TarInfo(name)
    member.mtime = _TIME
    if file is None:
        member.type, member.mode = tarfile.DIRTYPE, _PROGRAM
        archive.addfile(member)
    elif isinstance(file, bytes):
        member.size, member.mode = len(file), _FILE
        archive.addfile(member, io.BytesIO(file))
    else:
        status = file.stat()
        member.size, member.mode = status.st_size, _PROGRAM if status.st_mode & 0o111 else _FILE
        with file.open("rb") as content:
            archive.addfile(member, content)


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
    around = [] if into is None else [into.parent]  # empty until the bundle is in it
    contents = Contents.of(source, [*without, *around], more)
    if into is None and contents.is_source:
        return Bundle(source=source, directory=None)
    if into is not None:
        into.mkdir()
    directory = into or Path(tempfile.mkdtemp(prefix="smddp-source-"))
    try:
        for name, file in contents.files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            if file is None:
                (directory / name).mkdir(exist_ok=True)
            elif isinstance(file, bytes):
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
        f"{' '.join(said[-_QUOTED:])}. Let pip here reach an index (PIP_INDEX_URL), or use an image that has it, and "
        f"code that brings its own {PACKAGE}."
    )
