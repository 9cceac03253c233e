"""The name that a user may have meant: one of similar spelling, or the abbreviation that the field uses."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path


def near_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a user probably meant, None if no name is near.

    The initials of several words are a name's abbreviation, in both directions.

    Examples:
        >>> near_name("learning_rate", ["epochs", "lr"]), near_name("bs", ["batch_size", "lr"])
        ('lr', 'batch_size')
        >>> near_name("epoch", ["epochs", "lr"])
        'epochs'
    """
    names = list(known)
    if abbreviated := [each for each in names if _abbreviates(each, name) or _abbreviates(name, each)]:
        return abbreviated[0]
    return next(iter(difflib.get_close_matches(name, names, n=1)), None)


def near_script(script: Path) -> Path | None:
    """Return the Python file of a missing script's directory that a user probably meant; None if no name is near."""
    names = sorted(each.name for each in script.parent.glob("*.py"))
    near = near_name(script.name, names) or near_name(f"{script.name}.py", names)
    return None if near is None else script.with_name(near)


def no_script(script: Path, kind: str = "script") -> str:
    """Return the error for a path that is not a file."""
    if script.is_dir():
        return f"{script} is a directory: give the path of the {kind} itself."
    if not script.parent.is_dir():
        return f"There is no {kind} {script}: there is no directory {script.parent}."
    near = near_script(script)
    if near is None:
        return f"There is no {kind} {script} (looked in {script.parent.absolute()})."
    return f"There is no {kind} {script}. Did you mean {near}?"


def _abbreviates(short: str, long: str) -> bool:
    words = re.findall(r"[^\W_]+", long)
    return len(words) > 1 and short.strip("-").lower() == "".join(word[0] for word in words).lower()
