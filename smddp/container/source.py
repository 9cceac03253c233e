"""Fetches the training code from the job's URI into the code directory, and checks its entry point.

``smddp.container.bundle`` unpacks it, and ``smddp.container.command`` chooses how it runs. A plan applies the rules for
entry points before a job is sent. The rule for names is the toolkit's (sagemaker-training 5.1.4,
``process.validate_entry_point``).
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from smddp.container.bundle import unpack
from smddp.display_text import shown_names
from smddp.errors import SourceError

_NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*")
_SETUP = "setup.py"


def fetch_source(uri: str, code_dir: Path, *, region: str | None, environ: Mapping[str, str]) -> None:
    """Put the code at ``uri`` into ``code_dir``; existing files stay unless the bundle has them.

    The URI is ``s3://bucket/key`` of a .tar.gz, or ``file://`` or a plain path of a .tar.gz or a directory; the code
    directory itself means that the code is in the image. Of ``environ`` only ``S3_ENDPOINT_URL`` is read, as by the
    toolkit. Raise SourceError if the bundle is missing, damaged or unsafe to unpack.
    """
    code_dir.mkdir(parents=True, exist_ok=True)
    location = urlsplit(uri)
    if location.scheme == "s3":
        with tempfile.TemporaryDirectory() as directory:
            archive = Path(directory, "source.tar.gz")
            _download(location.netloc, location.path.lstrip("/"), archive, region, environ.get("S3_ENDPOINT_URL"))
            unpack(archive, code_dir, name=f"The source bundle {uri}")
        return
    path = Path(unquote(location.path)) if location.scheme == "file" else Path(uri)
    if path.is_dir():
        if path.resolve() != code_dir.resolve():
            shutil.copytree(path, code_dir, symlinks=True, dirs_exist_ok=True)
    elif path.is_file():
        unpack(path, code_dir, name=f"The source bundle {uri}")
    else:
        raise SourceError(
            f"The source bundle {uri} does not exist. sagemaker_submit_directory must be an s3:// URI or a local path."
        )


def check_entry_point(entry_point: str | None, code_dir: Path) -> str:
    """Return the entry point if it is a file in the code directory or a package's module; raise SourceError if not."""
    if not entry_point:
        raise SourceError(
            "The job names no entry point: set the hyperparameter sagemaker_program (the SDK's entry_point)."
        )
    if fault := fault_of_name(entry_point):
        raise SourceError(fault)
    path = code_dir / entry_point
    if path.suffix != ".py" and is_package(entry_point, top_files(code_dir)):
        return entry_point  # a module's name, which only the installed package can confirm
    if not path.is_file():
        raise SourceError(f"There is no entry point {entry_point} in the source bundle, which holds {_list(code_dir)}.")
    if not path.resolve().is_relative_to(code_dir.resolve()):
        raise SourceError(f"The entry point {entry_point} links to {path.resolve()}, outside the source bundle.")
    if path.suffix != ".py":
        path.chmod(path.stat().st_mode | 0o111)  # some archivers lose the executable bit
    return entry_point


def top_files(code_dir: Path) -> set[str]:
    """Return the names of the files at the top of the code directory."""
    return {path.name for path in code_dir.glob("*") if path.is_file()}


def fault_of_name(entry_point: str) -> str | None:
    """Return what is wrong with an entry point's path in the source bundle, and what is allowed; None if valid."""
    segments = entry_point.split("/")
    if _NAME.fullmatch(entry_point) and "." not in segments and ".." not in segments:
        return None
    return (
        f"The entry point {entry_point!r} must be a path inside the source directory, such as train.py or "
        "bin/train.sh: letters, digits and . _ + - / only, not absolute, no leading dash, no . or .. in it."
    )


def is_package(entry_point: str, files: Container[str]) -> bool:
    """Return whether the code is a Python package, to install and run as a module.

    ``files`` are the names at the top of the bundle. A package's entry point may be a module's name, without ``.py``.
    """
    return _SETUP in files and not entry_point.endswith(".sh")


def fault_under_torchrun(entry_point: str, *, package: bool) -> str | None:
    """Return why torchrun can't start an entry point in its ranks; None if it can.

    The other launchers start any entry point, in AWS's toolkit and in this container.
    """
    if not package and entry_point.endswith(".py"):
        return None
    kind = f"part of a Python package (there is a {_SETUP})" if package else "no Python file"
    return f"torchrun starts one Python file in every rank, but {entry_point} is {kind}."


def _download(bucket: str, key: str, target: Path, region: str | None, endpoint: str | None) -> None:
    import boto3  # takes a third of a second, and only jobs with code in S3 need it
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client = boto3.client("s3", region_name=region, endpoint_url=endpoint)
        client.download_file(bucket, key, str(target))
    except (BotoCoreError, ClientError) as error:
        raise SourceError(
            f"The source bundle s3://{bucket}/{key} can't be downloaded: {error}. Check that it exists and that the "
            "job's role may read it."
        ) from error


def _list(directory: Path, limit: int = 20) -> str:
    files: Iterable[Path] = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
    names = sorted(map(str, files))
    return shown_names(names, most=limit) or "no files"
