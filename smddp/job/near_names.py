"""The name that a user may have meant: one of similar spelling, or the abbreviation that the field uses."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable


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


def _abbreviates(short: str, long: str) -> bool:
    words = re.findall(r"[^\W_]+", long)
    return len(words) > 1 and short.strip("-").lower() == "".join(word[0] for word in words).lower()
