"""Reads a script's hyperparameters from the job's file, from SM_HPS, or from the command line.

Hyperparameters that are too large for a request travel as a file in the code bundle. The request then has one
hyperparameter of ours instead, with the SHA-256 of the file, so that a changed file is noticed. Its name begins with
``sagemaker_``, so that AWS's toolkit does not pass it to the script.

In a job the toolkit passes hyperparameters on the command line as well, but with loss ("1e3" as 1000.0, None as
nothing): there `load` reads the file instead.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from smddp.cluster import without_run_variables
from smddp.errors import HyperparameterError
from smddp.job.hyperparameters.codec import Verbatim, Words, assemble, decode
from smddp.job.hyperparameters.schema import describe, members, nested_dataclass, paths, resolve, show

logger = logging.getLogger(__name__)

T = TypeVar("T")

POINTER = "sagemaker_smddp_hyperparameters"
"""The hyperparameter whose value is the file's SHA-256, in hexadecimal digits."""
BUNDLED_FILE = "smddp-hyperparameters.json"
"""The file's name in the bundle: a JSON object of hyperparameters as text, as in a request."""

MOST_BYTES = 100_000
"""Bytes of all hyperparameters, as JSON, that always fit into environment variables: Linux allows 128 KiB for one
(execve(2)), and SM_TRAINING_ENV has them all, with much else."""


def from_json_file(cls: type[T], path: str | Path) -> T:
    """Make a dataclass from hyperparameters.json and its bundled file; raise HyperparameterError if they don't fit."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HyperparameterError(f"The hyperparameters can't be read: {error}.") from error
    base = Path(path).absolute().parent.parent.parent  # of input/config/hyperparameters.json
    return decode(cls, with_bundled(_object(text, str(path)), base))


def from_sm_hps(cls: type[T], text: str) -> T:
    """Make a dataclass from SM_HPS, whose values are JSON data; raise HyperparameterError if it does not fit.

    V3 loses there which of its values were a str ("5" is 5), so a number is refused for a str field.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Config:
        ...     optimizer: str
        >>> from_sm_hps(Config, '{"optimizer": "adam"}')
        Config(optimizer='adam')
    """
    data = _object(text, "SM_HPS")
    return decode(cls, {key: Verbatim(value) if isinstance(value, str) else value for key, value in data.items()})


def load(
    cls: type[T],
    environ: Mapping[str, str] | None = None,
    argv: Sequence[str] | None = None,
    hyperparameters_path: str | Path | None = None,
) -> T:
    """Make a dataclass from the script's hyperparameters; raise HyperparameterError if they do not fit.

    The job's hyperparameters.json has priority (in a job the command line is lossy), then SM_HPS, then the command
    line. ``environ`` and ``argv`` default to this process's own, ``hyperparameters_path`` to
    input/config/hyperparameters.json under SAGEMAKER_BASE_DIR, or /opt/ml if that is unset.
    """
    environ = without_run_variables(os.environ if environ is None else environ)
    base = environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
    path = Path(hyperparameters_path or Path(base) / "input" / "config" / "hyperparameters.json")
    if path.exists():
        logger.debug("Hyperparameters come from %s.", path)
        return from_json_file(cls, path)
    if environ.get("SM_HPS"):
        logger.debug("Hyperparameters come from SM_HPS.")
        return from_sm_hps(cls, environ["SM_HPS"])
    return from_arguments(cls, sys.argv[1:] if argv is None else argv)


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


def bundle_file(texts: Mapping[str, str]) -> tuple[bytes, str]:
    """Return the content of the file for hyperparameters in text form, and its SHA-256 in hexadecimal digits."""
    content = json.dumps(dict(texts), sort_keys=True, indent=1).encode()
    return content, hashlib.sha256(content).hexdigest()


def with_bundled(given: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return a job's hyperparameters, merged with the bundle's under ``base``/code; the request's have priority.

    Raise HyperparameterError if the bundled file is missing or changed.
    """
    if POINTER not in given:
        return dict(given)
    rest = {name: value for name, value in given.items() if name != POINTER}
    return {**read_bundled(given[POINTER], base), **rest}


def read_bundled(pointer: object, base: Path) -> dict[str, str]:
    """Return the bundle's hyperparameters, as text; raise HyperparameterError if the file is missing or changed."""
    path = base / "code" / BUNDLED_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise HyperparameterError(
            f"The job's hyperparameters travel in the bundle of its code, and can't be read there: {error}. Send the "
            "job anew, by an Estimator."
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if found != str(pointer).strip('"'):
        raise HyperparameterError(
            f"{path} is not what was sent with the job: its SHA-256 is {found}, and {POINTER} says {pointer}. Leave "
            "the file as it is, and send the job anew."
        )
    texts: dict[str, str] = json.loads(content)  # the digest says that we wrote it
    return texts


def _object(text: str, source: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise HyperparameterError(f"{source} is not JSON: {error}.") from error
    if not isinstance(data, dict):
        raise HyperparameterError(f"{source} must hold a JSON object of hyperparameters, not {type(data).__name__}.")
    return data
