"""The path of a file as a log shows it: short, so that its line fits the terminal."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def shown_path(path: str | Path) -> str:
    """Return a path relative to the working directory if it is below it, with ``~`` if it is below the home directory.

    Any other text, such as an S3 URI, is returned unchanged.
    """
    absolute = Path(path)
    for find, prefix in ((Path.cwd, ""), (Path.home, "~/")):
        with suppress(ValueError, OSError, RuntimeError):  # not below it; it was removed; there is none
            if (base := find()) != Path("/"):
                return f"{prefix}{absolute.relative_to(base)}"
    return str(path)
