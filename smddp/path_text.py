"""The path of a file as a log or an error shows it: short, so that its line fits the terminal."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_PATH = re.compile(r"(?<![\w/.:~@-])/[^\s'\"`,;:()<>|*?\[\]{}]+(?<![.])")
"""An absolute path in a sentence, without the full stop at its end; not the end of a URI or of a relative path."""


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


def with_shown_paths(text: str) -> str:
    """Return a message whose absolute paths are shortened as `shown_path` does.

    The working directory itself is not: a dot would not tell where it is. In quotes ``~`` is not used: the text may be
    a command, in which a shell would not expand it.
    """

    def shown(found: re.Match[str]) -> str:
        path = shown_path(found[0])
        is_quoted = text[: found.start()].endswith(("'", '"'))
        return found[0] if path == "." or (is_quoted and path.startswith("~")) else path

    return _PATH.sub(shown, text)
