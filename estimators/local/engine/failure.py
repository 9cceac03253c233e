"""A failed job's FailureReason: what the host that failed first has to say, in AWS's form and within its limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

MAX_CHARACTERS = 1024
"""The service keeps no more of a FailureReason."""
_GAP = " … "


def algorithm_error(
    exits: Mapping[str, int], roots: Mapping[str, Path], tails: Mapping[str, str], unread: str | None = None
) -> str:
    """``AlgorithmError: <why>, exit code: <n>``.

    Why is the ``output/failure`` of the host that failed first, else of any host that failed, else of any host. If no
    host wrote one, it is the last lines that the first one printed.

    Args:
        exits: Exit codes by host, in the order in which the hosts ended; one of them is not 0.
        roots: Every host's /opt/ml.
        tails: Every host's last lines.
        unread: Why data could not be read, if some could not: all that the program saw was an input/output error.
    """
    failed = [host for host, code in exits.items() if code]
    first = failed[0]
    why = _first_text(roots[host] / "output" / "failure" for host in dict.fromkeys([*failed, *roots]))
    if not why:
        printed = tails[first].strip()
        why = f"{first} wrote no /opt/ml/output/failure" + (f"; it printed: {printed}" if printed else "")
    if unread:
        why = f"{why}; {unread}"
    return fit(f"AlgorithmError: {why}", f", exit code: {exits[first]}")


def fit(text: str, suffix: str = "") -> str:
    """``text`` and ``suffix`` in `MAX_CHARACTERS`: what is too much goes from the middle of the text."""
    room = MAX_CHARACTERS - len(suffix)
    if len(text) > room:
        head = room // 2
        tail = room - head - len(_GAP)
        text = text[:head] + _GAP + text[-tail:]
    return text + suffix


def _first_text(files: Iterable[Path]) -> str:
    for file in files:
        if file.is_file() and (text := file.read_text(errors="replace").strip()):
            return text
    return ""
