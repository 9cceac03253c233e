"""Hydra's own command line, where there is no job: overrides, and which config they are for."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass

from smddp.hydra.composed import ONE_RUN

_SHOW = {"-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "-i", "--info", "-sc", "--shell-completion"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLine:
    """What a person has typed after the script's name."""

    overrides: tuple[str, ...]
    """``key=value``, and its other forms."""
    config_name: str | None
    """Of --config-name, or None."""
    config_path: str | None
    """Of --config-path, or None."""


def only_shows(argv: Sequence[str]) -> bool:
    """Return whether Hydra is to show something, such as the config, and not to train."""
    return any(word.partition("=")[0] in _SHOW for word in argv)


def parse(argv: Sequence[str]) -> CommandLine:
    """Parse what Hydra would.

    Raises:
        SystemExit: Code 2, with the reason: an option that there is not, or --multirun.
    """
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
