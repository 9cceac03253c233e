"""Hyperparameters from a command line, outside SageMaker: ``--batch-size 256 --no-amp --model.depth 50``.

In a job the toolkit passes them on the command line as well, but with loss ("1e3" as 1000.0, None as nothing): there
``sources.load`` reads the file instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

from smddp.job.hyperparameters.decode import assemble
from smddp.job.hyperparameters.raw_values import Words
from smddp.job.hyperparameters.schema import describe, members, nested_dataclass, paths, resolve, show

T = TypeVar("T")


def from_arguments(cls: type[T], argv: Sequence[str]) -> T:
    """Make a dataclass from command line arguments; raise HyperparameterError with all problems at once.

    ``--batch-size 256`` or ``--batch_size=256``; a bool as ``--amp``, ``--no-amp`` or ``--amp true``; a list as JSON,
    as several values, or repeated; a field of a nested dataclass with a dot. A value that starts with two dashes needs
    the equals sign. ``--help`` prints the fields and exits with code 0.

    Examples:
        >>> from dataclasses import dataclass, field
        >>> @dataclass
        ... class Config:
        ...     epochs: int = 5
        ...     amp: bool = True
        ...     sizes: list[int] = field(default_factory=list)
        >>> from_arguments(Config, ["--epochs", "3", "--no-amp", "--sizes", "64", "32"])
        Config(epochs=3, amp=False, sizes=[64, 32])
    """
    if "-h" in argv or "--help" in argv:
        _help(cls)
    flags = {name for name, field in paths(cls).items() if bool in members(field.annotation)}
    given: dict[str, Words] = {}
    stray: list[str] = []
    taking: Words | None = None
    for argument in argv:
        if argument.startswith("--"):
            key, equals, value = argument[2:].partition("=")
            name, negated = _name(cls, key, flags)
            words = given.setdefault(name, Words())
            taking = None if equals or negated else words
            if equals or negated:
                words.append("false" if negated else value)
        elif taking is not None:
            taking.append(argument)
        else:
            stray.append(f"unexpected argument {argument!r}")
    for name in flags & given.keys():
        given[name] = given[name] or Words(["true"])
    return assemble(cls, given, stray)


def _name(cls: type, key: str, flags: set[str]) -> tuple[str, bool]:
    """Return the dotted name of an option's field, and whether the option is ``--no-...``."""
    path = resolve(cls, key)
    if path is None and key[:3] in ("no-", "no_"):
        opposite = ".".join(resolve(cls, key[3:]) or ())
        if opposite in flags:
            return opposite, True
    return (key if path is None else ".".join(path)), False


def _help(cls: type) -> NoReturn:
    lines = [f"usage: {Path(sys.argv[0]).name} [--field value ...]", "", "fields:"]
    fields = {name: field for name, field in paths(cls).items() if nested_dataclass(field.annotation) is None}
    names = {name: "--" + name.replace("_", "-") for name in fields}
    types = {name: describe(field.annotation) for name, field in fields.items()}
    width, type_width = (max((len(text) for text in texts.values()), default=0) for texts in (names, types))
    for name, field in fields.items():
        default = "required" if field.required else f"default: {show(field.default)}"
        lines.append(f"  {names[name]:{width}}  {types[name]:{type_width}}  {default}")
    sys.stdout.write("\n".join(lines) + "\n")
    raise SystemExit(0)
