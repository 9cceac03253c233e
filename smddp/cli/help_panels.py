"""The help of each command, in panels as wide as the terminal.

typer draws the same panels with rich, whose import takes longer than everything else that ``smddp --help`` does.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

_NARROWEST = 40  # columns: below this, a row has no room for its text
_LARGEST_SHARE = 0.4
"""Part of the width that the names may take. A longer name is alone on its line."""
_ROUNDED, _ASCII = (tuple("╭╮╰╯"), "─", "│"), (tuple("++++"), "-", "|")


class PanelFormatter(typer.Context.formatter_class):  # type: ignore[valid-type,misc]  # in click or in typer
    """Writes each section of a help as a panel, and each row as a name with a wrapped text."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()
        self.width = max(shutil.get_terminal_size().columns, _NARROWEST)
        encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "")
        self._corners, self._line, self._side = _ROUNDED if encoding.startswith("utf") else _ASCII

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Write a panel with a title around the rows that are written within."""
        left, right, lower_left, lower_right = self._corners
        self.write("\n" if self.buffer and not self.buffer[-1].endswith(f"{lower_right}\n") else "")
        self.write(f"{left}{self._line} {name} ".ljust(self.width - 1, self._line) + f"{right}\n")
        yield
        self.write(f"{lower_left}{self._line * (self.width - 2)}{lower_right}\n")

    def write_dl(self, rows: Sequence[tuple[str, str]], *_: Any, **__: Any) -> None:
        """Write rows of a name and a text."""
        inside = self.width - 4
        column = min(max(len(name) for name, _ in rows), int(inside * _LARGEST_SHARE)) + 2
        for name, text in rows:
            lines = textwrap.wrap(" ".join(text.split()), inside - column, break_on_hyphens=False) or [""]
            if len(name) + 2 > column:
                lines = ["", *lines]
            for number, line in enumerate(lines):
                first = "" if number else name
                padding = " " * (inside - max(len(first), column if line else 0) - len(line))
                between = " " * (column - len(first)) if line else ""
                self.write(f"{self._side} {_highlighted(first)}{between}{line}{padding} {self._side}\n")


def _highlighted(name: str) -> str:
    return typer.style(name, fg="cyan", bold=True) if name and not os.environ.get("NO_COLOR") else name


class _PanelContext(typer.Context):
    formatter_class = PanelFormatter


class PanelGroup(TyperGroup):
    """A group of commands whose help, and that of each of its commands, is written in panels."""

    context_class = _PanelContext

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none of this name."""
        command: Any = super().get_command(ctx, cmd_name)
        if command is not None:
            command.context_class = _PanelContext
        return command

    def help_of(self, ctx: Any, name: str) -> str:
        """Return the help of one of the group's commands."""
        return self.get_command(ctx, name).help or ""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands' panel, with the first paragraph of each command's help."""
        names = self.list_commands(ctx)
        paragraphs = [inspect.cleandoc(self.help_of(ctx, name)).split("\n\n")[0] for name in names]
        with formatter.section("Commands"):
            formatter.write_dl(list(zip(names, paragraphs, strict=True)))

    def get_help_option(self, ctx: Any) -> Any:
        """Return the option ``--help``, with a default that is a bool: typer imports pydantic to convert another."""
        option: Any = super().get_help_option(ctx)
        option.default = False
        return option
