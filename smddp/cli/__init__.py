"""The command line, ``smddp ...``."""

from smddp.cli.program import main as main
