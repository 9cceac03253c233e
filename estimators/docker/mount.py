"""The ``--mount`` option of docker for a directory of any name."""

from __future__ import annotations


def bind(source: str, target: str) -> str:
    """Return the value of ``docker --mount``, a line of CSV. ``--volume`` would end a path at its first colon."""
    return f"type=bind,{_field('source', source)},{_field('target', target)}"


def _field(name: str, path: str) -> str:
    """Return one quoted field of CSV, because a path may contain commas and quotes."""
    quoted = path.replace('"', '""')
    return f'"{name}={quoted}"'
