"""Text as a person reads it on a terminal or in a log: without control sequences, its paths short.

Text from a job or its storage must not move the reader's cursor, set a title or fill the clipboard. The stored text, in
a job's description or a manifest, is unchanged; it is cleaned when a message or a line is made from it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC and other strings: titles, links, the clipboard
    r"|\x1b[ -/]*[0-Z\\-~]"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)
"""Control sequences of ECMA-48; control characters except tab, newline and carriage return; and characters that change
the text's direction."""
_PATH = re.compile(r"(?<![\w/.:~@-])/[^\s'\"`,;:()<>|*?\[\]{}]+(?<![.])")
"""An absolute path in a sentence, without the full stop at its end; not the end of a URI or of a relative path."""


def shown_line(line: str) -> str:
    """Return a log line without control sequences; for a progress bar, its last state."""
    return next(filter(None, reversed(_CONTROL.sub("", line).rstrip("\r\n").split("\r"))), "")


def shown_text(text: str) -> str:
    """Return a message without control sequences; carriage returns become newlines."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def shown_error(message: str) -> str:
    """Return an error's message for a terminal: without control sequences, its paths as log lines show them."""
    return shown_text(with_shown_paths(message))


def shown_name(name: str) -> str:
    r"""Return a name on one line, with unprintable characters escaped as in Python, such as ``\x1b``."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in name)


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
