"""The program ``smddp``: the command line.

Ctrl-C, a user's mistake and a full disk are one line each, without a traceback.
"""

from __future__ import annotations

import errno
import os
import sys

from smddp.errors import SmddpError
from smddp.process.inherited import reset_inherited

_OF_DISK = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EEXIST,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EROFS,
}
"""What the file system refuses to any program: no traceback helps."""


def main() -> None:
    """Run the command line; exit with 2 after a user's mistake, with 130 after Ctrl-C."""
    reset_inherited()
    try:
        # Here, because Ctrl-C may come during the imports, too.
        from smddp.cli.app import app
        from smddp.display_text import shown_error, shown_path, shown_text

        try:
            app()
        except SmddpError as error:
            sys.stderr.write(f"smddp: {shown_error(str(error))}\n")
            sys.exit(2)
        except OSError as error:
            if _is_directory_gone():
                sys.stderr.write("smddp: the working directory was removed. Change to another one, such as by cd ~\n")
                sys.exit(2)
            place, is_full = error.filename, error.errno in (errno.EDQUOT, errno.ENOSPC)
            if error.errno not in _OF_DISK or not (is_full or isinstance(place, str)):
                raise
            where = f"{shown_path(place)}: " if isinstance(place, str) else ""
            remedy = "Free some space, or give another place." if is_full else "Give another place."
            sys.stderr.write(f"smddp: {shown_text(where)}{error.strerror}. {remedy}\n")
            sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("smddp: interrupted\n")
        sys.exit(130)


def _is_directory_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109, the import of pathlib takes longer
    except FileNotFoundError:
        return True
    return False
