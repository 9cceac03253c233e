"""``smddp migrate``: a submit script of the SageMaker SDK as one of the Estimator, as a diff or in its file."""

from __future__ import annotations

import difflib
import io
import os
import shutil
import tempfile
import tokenize
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from smddp.display_text import shown_error
from smddp.job.near_names import notebook_remedy


def migrate(
    submit: Annotated[Path, typer.Argument(help="The script that describes the job with the SageMaker SDK, V2 or V3.")],
    write: Annotated[
        bool, typer.Option("--write", help="Change the file; as it was, it stays beside it as SUBMIT.orig.")
    ] = False,
) -> None:
    """Convert a script of PyTorch (SDK V2) or ModelTrainer (V3) to smddp's Estimator; nothing is run or sent.

    The diff goes to standard output, notes on the changes to standard error. Exit code 0 if all is migrated, 1 if
    something is left to do, 2 if the file can't be read or describes no job.
    """
    try:
        import libcst  # noqa: F401 - an extra's
    except ModuleNotFoundError:
        _fail("libcst is missing. Do: pip install 'smddp[migrate]'")
    from estimators.errors import EstimatorError
    from estimators.migrate.migration import migrate as migrated

    if remedy := notebook_remedy(submit):
        _fail(f"{submit} is a notebook. {remedy}")
    try:
        source = submit.read_bytes()
        migration = migrated(source)
    except OSError as fault:
        _fail(f"{submit} can't be read: {fault.strerror}. Give the script that describes the job.")
    except EstimatorError as fault:
        _fail(f"{submit}: {fault}")
    for note in migration.notes:
        typer.echo(f"{submit}:{note.line}: {note}", err=True)
    if not migration.migrated and migration.is_complete:
        typer.echo(f"{submit}: nothing to do, its jobs are the Estimator's.", err=True)
    if not write:
        typer.echo(_diff(source, migration.proposed, str(submit)), nl=False)
        if migration.proposed != migration.source:
            typer.echo(
                f"{submit}: the diff has what can be changed of a job with something to do; --write leaves that job as "
                "it is.",
                err=True,
            )
    elif migration.migrated:
        try:
            kept = _written(submit, migration.source)
        except OSError as fault:
            _fail(f"{fault.filename}: {fault.strerror}. Nothing was changed: move it away, or see who may write there.")
        typer.echo(f"{submit}: migrated {migration.migrated} of its jobs; as it was, the script is {kept}.", err=True)
    raise typer.Exit(0 if migration.is_complete else 1)


def _fail(reason: str) -> NoReturn:
    typer.echo(f"smddp migrate: {shown_error(reason)}", err=True)
    raise typer.Exit(2)


_NO_LINE_END = "\n\\ No newline at end of file\n"


def _diff(old: bytes, new: bytes, name: str) -> str:
    """Return the changes to a script as a unified diff that ``patch`` takes."""
    lines = difflib.unified_diff(_lines(old), _lines(new), fromfile=name, tofile=name)
    return "".join(line if line.endswith("\n") else line + _NO_LINE_END for line in lines)


def _written(path: Path, new: bytes) -> Path:
    """Replace a script, and return the path of the old one.

    Raise OSError if an earlier migration's old script is there, or the directory is not writable.
    """
    path = path.resolve()
    kept = path.with_name(f"{path.name}.orig")
    # 1. Copy the script to a new file.
    # 2. Write the new text to a temporary file beside the script.
    # 3. Rename that file over the script. After an error in 2 or 3 the script is unchanged, and both files are removed.
    with kept.open("xb") as copy:
        copy.write(path.read_bytes())
    shutil.copystat(path, kept)
    try:
        handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            os.close(handle)
            Path(unfinished).write_bytes(new)
            shutil.copymode(path, unfinished)
            Path(unfinished).replace(path)
        except OSError:
            Path(unfinished).unlink()
            raise
    except OSError:
        kept.unlink()
        raise
    return kept


def _lines(source: bytes) -> list[str]:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
    lines = source.decode(encoding).split("\n")
    return [*(line + "\n" for line in lines[:-1]), *lines[-1:]] if lines[-1] else [line + "\n" for line in lines[:-1]]
