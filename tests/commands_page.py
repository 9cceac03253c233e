"""docs/reference/commands.md, from the commands' own help: ``python -m tests.commands_page`` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from smddp.cli.app import app

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "commands.md"
_HEAD = "# Commands\n\nEvery command of `smddp`, from its own help. `smddp COMMAND --help` shows the same.\n"


def render() -> str:
    """The page."""
    return _HEAD + "".join(_section(*each) for each in _commands("smddp", typer.main.get_command(app)))


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Every command by its name; click's own classes, which newer typers bring along under another name."""
    children = command.list_commands(None) if hasattr(command, "list_commands") else []
    for child in sorted(children):
        yield from _commands(f"{name} {child}", command.get_command(None, child))
    if not children:
        yield name, command


def _section(name: str, command: Any) -> str:
    parts = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    rows = [_row(each) for each in command.params]
    table = ["", "| argument | what it is | default |", "|---|---|---|", *rows] if rows else []
    return "\n".join([f"\n## {name}\n", "\n\n".join(parts), *table, ""])


def _row(parameter: Any) -> str:
    name = ", ".join(parameter.opts) if parameter.param_type_name == "option" else parameter.name.upper()
    text = (parameter.help or "").rstrip(".") + ("; required" if parameter.required else "")
    default = getattr(parameter.default, "value", parameter.default)
    default = "" if default is None or default is False or default in ((), []) else f" `{default}`"
    return f"| `{name}` | {text} |{default} |"


if __name__ == "__main__":
    PAGE.write_text(render())
