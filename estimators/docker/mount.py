"""How docker is told to show a directory of this machine in a container, whatever its name."""

from __future__ import annotations


def bind(source: str, target: str, *, read_only: bool = False) -> str:
    """Return what ``docker --mount`` takes, a line of CSV; ``--volume`` would end a path at its first colon."""
    quoted = source.replace('"', '""')
    return f'type=bind,"source={quoted}",target={target}' + (",readonly" if read_only else "")
