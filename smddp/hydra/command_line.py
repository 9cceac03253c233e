"""Hydra's own command line, outside of a job: overrides, and the config that they belong to."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass

from smddp.hydra.composed import ONE_RUN

_SHOW = {"-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "-i", "--info", "-sc", "--shell-completion"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLine:
    """The arguments after the script's name."""

    overrides: tuple[str, ...]
    """``key=value``, and Hydra's other forms."""
    config_name: str | None
    """The value of --config-name, or None."""
    config_path: str | None
    """The value of --config-path, or None."""


def only_shows(argv: Sequence[str]) -> bool:
    """Return whether Hydra should only show something, such as the config, and not train."""
    return any(word.partition("=")[0] in _SHOW for word in argv)


def parse(argv: Sequence[str]) -> CommandLine:
    """Parse Hydra's options; exit with code 2 and the reason for an unknown option or --multirun."""
    parser = ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--config-name", "-cn")
    parser.add_argument("--config-path", "-cp")
    parser.add_argument("--run", "-r", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    given = parser.parse_intermixed_args(argv)
    if given.multirun:
        parser.error(f"--multirun: {ONE_RUN}")
    return CommandLine(overrides=tuple(given.overrides), config_name=given.config_name, config_path=given.config_path)
