"""Files that several commands write, checked before the work begins."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import typer


def written_file(path: Path) -> str:
    """Return the absolute path of a file to write; raise BadParameter if it can't be written."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"{path} can't be written: give a file in a directory that exists.")
    return str(path.absolute())


def plot_file(path: Path) -> str:
    """Return the absolute path of a picture to write; raise BadParameter if it can't be drawn or written."""
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{path}: give a name that ends with .png, .svg or .pdf.")
    if importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("A plot needs matplotlib: pip install matplotlib.")
    return written_file(path)
