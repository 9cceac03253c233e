"""The bundle of training code: fetched from where the job names it, and unpacked into the code directory.

A bundle comes from whoever may write to the bucket, so nothing in it may land, or point, outside the code directory.
It is refused as a whole, before a single file is written, and the error names the member. Running the code is for
``smddp.container.command``.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from smddp.errors import SourceError

MAX_MEMBERS = 100_000
MAX_BYTES = 10 * 2**30
"""Bounds on what one bundle may unpack to: far above any code, far below a disk."""

_ENTRY_POINT = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*")
_SPECIAL_BITS = 0o6000  # setuid, setgid


def fetch_source(uri: str, code_dir: Path, *, region: str | None, environ: Mapping[str, str]) -> None:
    """Put the code that ``uri`` names into ``code_dir``.

    Args:
        uri: ``s3://bucket/key`` of a .tar.gz, or ``file://`` or a plain path of a .tar.gz or a directory. The code
            directory itself means that the image brings the code.
        code_dir: Where the code goes. Files that are there already stay, unless the bundle holds them too.
        region: The bucket's region.
        environ: ``S3_ENDPOINT_URL`` is read, as the toolkit reads it; boto3 reads its own.

    Raises:
        SourceError: The bundle is missing, damaged or unsafe to unpack.
    """
    code_dir.mkdir(parents=True, exist_ok=True)
    location = urlsplit(uri)
    if location.scheme == "s3":
        with tempfile.TemporaryDirectory() as directory:
            archive = Path(directory, "source.tar.gz")
            _download(location.netloc, location.path.lstrip("/"), archive, region, environ.get("S3_ENDPOINT_URL"))
            unpack(archive, code_dir, name=uri)
        return
    path = Path(unquote(location.path)) if location.scheme == "file" else Path(uri)
    if path.is_dir():
        if path.resolve() != code_dir.resolve():
            shutil.copytree(path, code_dir, symlinks=True, dirs_exist_ok=True)
    elif path.is_file():
        unpack(path, code_dir, name=uri)
    else:
        raise SourceError(
            f"The source bundle {uri} does not exist. sagemaker_submit_directory must be an s3:// URI or a local path."
        )


def unpack(archive: Path, directory: Path, *, name: str) -> None:
    """Unpack a .tar.gz, after every member of it has been checked.

    Raises:
        SourceError: It is damaged, or a member would leave the directory, is no file, directory or link, has the
            setuid or setgid bit, or there is too much of it.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = _checked(tar, name)
            assert tar.fileobj is not None
            while tar.fileobj.read(2**20):  # to the end, where gzip's checksum stands
                pass
            for member in members:
                if not member.issym():
                    _write(tar, member, directory / member.name)
        # Links last: nothing is ever written through one.
        links = [member for member in members if member.issym()]
        for member in links:
            _make_link(directory / member.name, member.linkname)
        for member in links:
            if not _inside((directory / member.name).resolve(), directory.resolve()):
                for made in links:
                    (directory / made.name).unlink()
                raise _refusal(name, member.name, f"it links to {member.linkname}, outside the code directory")
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise SourceError(f"The source bundle {name} can't be unpacked as a .tar.gz: {error}.") from error


def check_entry_point(entry_point: str | None, code_dir: Path) -> str:
    """The entry point, if it is a plain relative path of a file in the code directory.

    Raises:
        SourceError: It is not; the message lists the files that there are.
    """
    if not entry_point:
        raise SourceError(
            "The job names no entry point: set the hyperparameter sagemaker_program (the SDK's entry_point)."
        )
    segments = entry_point.split("/")
    if not _ENTRY_POINT.fullmatch(entry_point) or "." in segments or ".." in segments:
        raise SourceError(
            f"The entry point {entry_point!r} must be a path inside the source directory, such as train.py or "
            "bin/train.sh: letters, digits and . _ + - / only, not absolute, no leading dash, no . or .. in it."
        )
    path = code_dir / entry_point
    if not path.is_file():
        raise SourceError(f"There is no entry point {entry_point} in the source bundle, which holds {_list(code_dir)}.")
    if not _inside(path.resolve(), code_dir.resolve()):
        raise SourceError(f"The entry point {entry_point} links to {path.resolve()}, outside the source bundle.")
    if path.suffix != ".py":
        path.chmod(path.stat().st_mode | 0o111)  # a program; some archivers lose the bit
    return entry_point


def _download(bucket: str, key: str, target: Path, region: str | None, endpoint: str | None) -> None:
    import boto3  # a third of a second, and only jobs with code in S3 need it
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client = boto3.client("s3", region_name=region, endpoint_url=endpoint)
        client.download_file(bucket, key, str(target))
    except (BotoCoreError, ClientError) as error:
        raise SourceError(
            f"The source bundle s3://{bucket}/{key} can't be downloaded: {error}. Check that it exists and that the "
            "job's role may read it."
        ) from error


def _checked(tar: tarfile.TarFile, name: str) -> list[tarfile.TarInfo]:
    members: dict[PurePosixPath, tarfile.TarInfo] = {}
    total = 0
    for count, member in enumerate(tar, start=1):
        path = PurePosixPath(member.name)
        total += member.size
        problem = _problem(path, member)
        if problem is None and member.islnk():
            original = members.get(PurePosixPath(member.linkname))
            if original is None or not original.isreg():
                problem = f"it is a hard link to {member.linkname}, which is no file before it in the archive"
        if count > MAX_MEMBERS:
            problem = f"it is one more than the {MAX_MEMBERS:,} members that are allowed"
        elif total > MAX_BYTES:
            problem = f"with it the archive unpacks to more than {MAX_BYTES:,} bytes"
        if problem is not None:
            raise _refusal(name, member.name, problem)
        members[path] = member
    for path in members:
        link = next((parent for parent in path.parents if parent in members and members[parent].issym()), None)
        if link is not None:
            raise _refusal(name, str(path), f"it lies behind the link {link}")
    return list(members.values())


def _problem(path: PurePosixPath, member: tarfile.TarInfo) -> str | None:
    if path.is_absolute():
        return "its path is absolute"
    if ".." in path.parts:
        return "its path holds '..'"
    if "\0" in member.name or "\0" in member.linkname:
        return "its name holds a NUL, which no file's can"
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return "it is neither file, directory nor link"
    if member.isreg() and member.mode & _SPECIAL_BITS:
        return f"it has the setuid or setgid bit (mode {member.mode:o})"
    if member.issym():
        target = os.path.normpath(path.parent / member.linkname)
        if target.startswith(("/", "../")) or target == "..":
            return f"it links to {member.linkname}, outside the code directory"
    return None


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    content = tar.extractfile(member)  # of a hard link: the file that it links to
    assert content is not None
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
    target.chmod(0o644 | member.mode & 0o111)


def _make_link(link: Path, target: str) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)


def _inside(path: Path, directory: Path) -> bool:
    return path == directory or directory in path.parents


def _refusal(archive: str, member: str, problem: str) -> SourceError:
    return SourceError(f"The source bundle {archive} is refused: member {member!r}: {problem}.")


def _list(directory: Path, limit: int = 20) -> str:
    files: Iterable[Path] = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    names = sorted(map(str, files))
    if not names:
        return "no files"
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
