"""The name or path that a user may have meant: one of similar spelling, or the field's abbreviation of a name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
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
    """Return the Python file that a user probably meant by the path of a missing script; None if no path is near.

    A file of the script's own name, in a directory of a similar name, above or one directory below, precedes one of a
    similar name.
    """
    names = [script, script.with_name(f"{script.name}.py")]
    above = next(parent for parent in script.parents if parent.is_dir())
    places = [script.parent, near_directory(script.parent), above, *_shown(above, Path.is_dir)]
    same = (place / each.name for place in places if place is not None for each in names)
    similar = (near for each in names if (near := _near(each, _is_python)) is not None)
    return next((each for each in (*filter(_is_python, same), *similar)), None)


def near_directory(directory: Path) -> Path | None:
    """Return the directory that a user probably meant by a path that is no directory; None if no path is near."""
    return _near(directory, Path.is_dir)


def near_path(path: Path) -> Path | None:
    """Return the file or directory that a user probably meant by a missing path; None if no path is near."""
    return _near(path, Path.exists)


def no_script(script: Path, kind: str = "script") -> str:
    """Return the error for a path that is not a file."""
    if script.is_dir():
        return f"{script} is a directory: give the path of the {kind} itself."
    is_in_directory = script.parent.is_dir()
    what = f"There is no {kind} {script}{'' if is_in_directory else f': there is no directory {script.parent}'}"
    if (near := near_script(script)) is not None:
        return f"{what}. Did you mean {near}?"
    return f"{what} (looked in {script.parent.absolute()})." if is_in_directory else f"{what}."


def notebook_remedy(script: Path) -> str | None:
    """Return how to make a script of a notebook; None for other files."""
    return f"Make a script of it first: jupyter nbconvert --to script {script}" if script.suffix == ".ipynb" else None


def _near(path: Path, accepts: Callable[[Path], bool]) -> Path | None:
    """Return the accepted path that is nearest by its name, in the path's directory or in one of a similar name."""
    parent = path.parent if path.parent.is_dir() else near_directory(path.parent)
    if parent is None:
        return None
    names = [each.name for each in _shown(parent, accepts)]
    near = path.name if path.name in names else near_name(path.name, names)
    return None if near is None else parent / near


def _shown(directory: Path, accepts: Callable[[Path], bool]) -> list[Path]:
    return sorted(each for each in directory.glob("*") if accepts(each) and not each.name.startswith("."))


def _is_python(path: Path) -> bool:
    return path.suffix == ".py" and path.is_file()


def _abbreviates(short: str, long: str) -> bool:
    words = re.findall(r"[^\W_]+", long)
    return len(words) > 1 and short.strip("-").lower() == "".join(word[0] for word in words).lower()
