"""Where programs are looked for: PATH, without the directories in which programs of ours stand in for others."""

from __future__ import annotations

import os
from pathlib import Path

SHIM_MARK = ".smddp-shims"
"""A file of this name says that what is in its directory only stands in for the real programs."""


def search_path() -> str:
    """PATH without the shims, be they of this thread's job or of another's."""
    entries = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(entry for entry in entries if not Path(entry, SHIM_MARK).exists())
