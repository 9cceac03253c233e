"""The command line, ``smddp ...``."""

from smddp.cli.app import main as main
