"""A migrated script as a diff, and in its file: as a whole or not at all, with the old one beside it."""

from __future__ import annotations

import difflib
import io
import os
import shutil
import tempfile
import tokenize
from pathlib import Path

_NO_LINE_END = "\n\\ No newline at end of file\n"


def diff(old: bytes, new: bytes, name: str) -> str:
    """Return what changes in a script, as a unified diff that ``patch`` takes."""
    lines = difflib.unified_diff(_lines(old), _lines(new), fromfile=name, tofile=name)
    return "".join(line if line.endswith("\n") else line + _NO_LINE_END for line in lines)


def written(path: Path, new: bytes) -> Path:
    """Replace a script; return where the old one is kept.

    Raises:
        OSError: There is a file of an earlier migration already, or the directory can't be written to.
    """
    path = path.resolve()
    kept = path.with_name(f"{path.name}.orig")
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
