"""The program ``smddp``: the command line, where Ctrl-C and a user's mistake are one line each, without a traceback."""

from __future__ import annotations

import sys

from smddp.errors import SmddpError


def main() -> None:
    """Run the command line; exit with 2 after a user's mistake, with 130 after Ctrl-C."""
    try:
        # Here, because Ctrl-C may come during the imports, too.
        from smddp.cli.app import app
        from smddp.path_text import with_shown_paths
        from smddp.process.terminal_text import shown_text

        try:
            app()
        except SmddpError as error:
            sys.stderr.write(f"smddp: {shown_text(with_shown_paths(str(error)))}\n")
            sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("smddp: interrupted\n")
        sys.exit(130)
