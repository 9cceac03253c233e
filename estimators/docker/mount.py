"""How docker is told to show a directory of this machine in a container, whatever its name."""

from __future__ import annotations


def bind(source: str, target: str) -> str:
    """Return what ``docker --mount`` takes: a line of CSV. ``--volume`` would end a path at its first colon."""
    return f"type=bind,{_field('source', source)},{_field('target', target)}"


def _field(name: str, path: str) -> str:
    """Return a field of CSV, in which a path may have commas and quotes."""
    quoted = path.replace('"', '""')
    return f'"{name}={quoted}"'
