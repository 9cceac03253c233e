"""docs/reference/trainer.md names every argument of the Trainer with its default, and every method."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import smddp

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "trainer.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    section = PAGE.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def shown(default: object) -> str:
    """How the page writes a default."""
    if default is inspect.Parameter.empty:
        return ""
    if isinstance(default, smddp.CheckpointPolicy | smddp.DDPOptions):
        return f"`{type(default).__name__}()`"
    return "`" + repr(default).replace("'", '"') + "`"


def test_every_argument_has_its_default() -> None:
    parameters = list(inspect.signature(smddp.Trainer).parameters.values())
    assert [(row[0], row[1]) for row in rows("Arguments")] == [
        (f"`{each.name}`", shown(each.default)) for each in parameters
    ]


def test_every_option_of_ddp_has_its_row() -> None:
    options = {name.strip("` ") for row in rows("DDP's options") for name in row[0].split(",")}
    texts = " ".join(row[2] for row in rows("DDP's options"))
    missing = [name for name in inspect.signature(smddp.DDPOptions).parameters if name not in options]
    assert all(f"`{name}`" in texts for name in missing), missing


def test_every_option_of_sharded_has_its_row() -> None:
    parameters = inspect.signature(smddp.Sharded).parameters.values()
    assert [(row[0], row[1].replace('"', "'")) for row in rows("Sharded's options")] == [
        (f"`{each.name}`", "" if each.default is each.empty else f"`{each.default!r}`") for each in parameters
    ]


def test_every_method_is_named() -> None:
    public = {
        name for name, member in inspect.getmembers(smddp.Trainer, inspect.isfunction) if not name.startswith("_")
    }
    named = {name for row in rows("Methods") for name in re.findall(r"`(\w+)\(", row[0])}
    assert named == public


def test_every_precision_has_its_row() -> None:
    from typing import get_args

    from smddp.training.precision import PrecisionName

    assert {name for row in rows("Precision") for name in re.findall(r'`"(\w+)"`', row[0])} == set(
        get_args(PrecisionName)
    )
