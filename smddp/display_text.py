"""Text as a person reads it on a terminal or in a log: no control sequences, short paths, durations, sizes and counts.

Text from a job or its storage must not move the reader's cursor, set a title or fill the clipboard. The stored text, in
a job's description or a manifest, is unchanged; it is cleaned when a message or a line is made from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
_SHOWN_RANKS = 3
_LONGEST_WORD = 80
"""Characters of a word, such as a weight's name, that is left out whole where a text is shortened."""
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
MEMORY_UNITS = ("B", "KiB", "MiB", "GiB")
"""The units of `as_memory`: each has 1024 of the one before."""


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
    from pathlib import Path  # takes 14 ms, which the first process of a container does not need

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


def speed(samples_a_second: float) -> str:
    """Return a speed such as ``8123 samples/s``."""
    return f"{samples_a_second:.0f} samples/s" if samples_a_second >= 10 else f"{samples_a_second:.2g} samples/s"


def duration(seconds: float) -> str:
    """Return a duration such as ``12 s``, ``3:07 min``, ``2:15 h``."""
    whole = int(max(seconds, 0.0))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}:{whole % 60:02} min" if whole < 3600 else f"{whole // 3600}:{whole // 60 % 60:02} h"


def counted(number: int, one: str, several: str | None = None) -> str:
    """Return ``1 step``, ``2 steps``; `several` is the plural of a noun that takes no ``s``."""
    return f"{number} {one if number == 1 else several or f'{one}s'}"


def as_size(size: int) -> str:
    """Return a number of bytes for people: ``1.25 GB``."""
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{size} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def as_memory(size: int) -> str:
    """Return bytes of memory for people, as GPUs and buffers are sold: ``22.4 GiB``; a whole number without a point."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(MEMORY_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {MEMORY_UNITS[unit]}" if value == int(value) else f"{value:.1f} {MEMORY_UNITS[unit]}"


def shown_names(names: Iterable[object], *, most: int = 5) -> str:
    """Return at most `most` names or numbers, and the number of the others: a message never ends inside a name.

    Examples:
        >>> shown_names(["weight", "bias"])
        'weight, bias'
        >>> shown_names(range(9), most=3)
        '0, 1, 2 and 6 more'
    """
    texts = [str(name) for name in names]
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def shown_ranks(hosts: Mapping[int, str]) -> str:
    """Return ranks, with the host of each, as a sentence names them.

    Examples:
        >>> shown_ranks({1: "algo-2"})
        'rank 1 on algo-2'
        >>> shown_ranks(dict.fromkeys([0, 2, 4, 6, 8], "algo-1"))
        'ranks 0, 2, 4 and 2 more'
    """
    if len(hosts) == 1:
        ((rank, host),) = hosts.items()
        return f"rank {rank} on {host}"
    return f"ranks {shown_names(hosts, most=_SHOWN_RANKS)}"


def describe(value: object) -> str:
    """Return a short name of a value for an error message; a model's own text may have a thousand lines."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    is_short = value is None or isinstance(value, str | int | float)
    return f"{value!r:.100}" if is_short else with_article(type(value).__qualname__)


def with_article(noun: str) -> str:
    """Return ``a dict``, ``an int``, ``a UserDict``."""
    return f"{'an' if noun[:1] in 'aeioAEIO' else 'a'} {noun}"


def shortened(text: str, limit: int) -> str:
    """Return the text within a limit: its beginning and end, with a mark for the omitted middle.

    It is cut between words: half a name would read as another name. A very long word is cut nevertheless.
    """
    if len(text) <= limit:
        return text
    head = (limit - 5) // 2
    tail = len(text) - (limit - 5 - head)
    word = min(_LONGEST_WORD, head // 2)
    head = next((end for end in range(head, head - word, -1) if text[end].isspace()), head)
    tail = next((begin for begin in range(tail, tail + word) if text[begin - 1].isspace()), tail)
    return f"{text[:head]} ... {text[tail:]}"


def encodable(text: str) -> str:
    """Return the text with surrogates escaped, since file names need not be valid text."""
    return text.encode("utf-8", "backslashreplace").decode()
