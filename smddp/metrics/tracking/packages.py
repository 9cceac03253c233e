"""Packages that only a tracker needs."""

from __future__ import annotations

from importlib.util import find_spec


def require(package: str, tracker: str) -> None:
    """Raise ModuleNotFoundError if a tracker's package is not installed."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(
            f"{tracker} needs {package}, which is not installed: pip install 'smddp[trackers]' (in a job, a line of "
            "its requirements.txt), or leave that tracker out",
            name=package,
        )
