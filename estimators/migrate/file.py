"""A migrated script as a diff, or in its file: written as a whole or not at all, with the old script beside it."""

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
    """Return the changes to a script as a unified diff that ``patch`` takes."""
    lines = difflib.unified_diff(_lines(old), _lines(new), fromfile=name, tofile=name)
    return "".join(line if line.endswith("\n") else line + _NO_LINE_END for line in lines)


def written(path: Path, new: bytes) -> Path:
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
