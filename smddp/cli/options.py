"""Options of several commands: files that they write, and numbers, checked before the work begins."""

from __future__ import annotations

import importlib.util
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

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


def whole_number(*, help: str, least: int | None = None, most: int | None = None) -> Any:  # noqa: A002 - typer's name
    """Return an option whose value is a whole number in a range. Without a range the command itself checks it.

    typer's own error for a text shows neither the text nor the range, and its words are of a library below it.
    """

    def parse(text: str | int) -> int:
        with suppress(ValueError):
            if _is_within(value := int(text), least, most):
                return value
        raise typer.BadParameter(f"{text}: give a whole number{_range(least, most)}.")

    return typer.Option(parser=parse, metavar=f"<int{_range(least, most)}>", help=help)


def decimal_number(*, help: str, least: float | None = None, most: float | None = None) -> Any:  # noqa: A002 - typer's name
    """Return an option whose value is a finite number in a range, as `whole_number` does."""

    def parse(text: str | float) -> float:
        with suppress(ValueError):
            if math.isfinite(value := float(text)) and _is_within(value, least, most):
                return value
        raise typer.BadParameter(f"{text}: give a number{_range(least, most)}.")

    return typer.Option(parser=parse, metavar=f"<float{_range(least, most)}>", help=help)


def _is_within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _range(least: float | None, most: float | None) -> str:
    if least is None:
        return ""
    return f" of {least:g} or more" if most is None else f" from {least:g} to {most:g}"
