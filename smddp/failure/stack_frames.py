"""The frames of a stack that tell a user where an error or a wait is: the user's own, each in one line."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, TracebackType

from smddp.display_text import encodable, shortened
from smddp.errors import SmddpError

_CODE_LIMIT = 120

PACKAGE_PATH = str(Path(__file__).parents[1]) + os.sep
"""The directory of smddp itself."""


def thread_traceback(thread: threading.Thread | None = None) -> TracebackType | None:
    """Return a thread's stack as a traceback, to report it with an error; by default the main thread's."""
    ident = (thread or threading.main_thread()).ident
    frame = sys._current_frames().get(ident or 0)  # noqa: SLF001, it is documented
    outermost = None
    while frame is not None:
        outermost = TracebackType(outermost, frame, frame.f_lasti, _line(frame))
        frame = frame.f_back
    return outermost


def _line(frame: FrameType) -> int:
    """Return the line that a frame executes.

    On Python 3.10 and 3.11 the jump back to a loop's head may have no line, and Python switches threads there. Such a
    jump counts as the line before it in the bytecode.
    """
    line = frame.f_lineno
    if line is None:
        code = frame.f_code
        before = [each for start, _, each in code.co_lines() if start <= frame.f_lasti and each is not None]
        line = before[-1] if before else code.co_firstlineno
    return line


def frame_lines(stack: Sequence[traceback.FrameSummary]) -> list[str]:
    """Return the user's own frames of a stack as a report shows them; the innermost frame if none is the user's."""
    own = [frame for frame in stack if not _is_installed(frame.filename)]
    return [frame_line(frame).strip() for frame in own or stack[-1:]]


def telling_frames(error: traceback.TracebackException) -> list[traceback.FrameSummary]:
    """Return the user's own frames and the innermost frame, unless the innermost is a check of this package."""
    own = [frame for frame in error.stack[:-1] if not _is_installed(frame.filename)]
    is_refusal = error.exc_type is not None and issubclass(error.exc_type, SmddpError)
    checks = PACKAGE_PATH if own or is_refusal else None
    return own + [frame for frame in error.stack[-1:] if checks is None or not frame.filename.startswith(checks)]


def frame_line(frame: traceback.FrameSummary) -> str:
    """Return a frame's file, line, function and code, indented."""
    code = f": {shortened(frame.line, _CODE_LIMIT)}" if frame.line else ""
    place = "/".join(Path(frame.filename).parts[-2:])
    number = "" if frame.lineno is None else f":{frame.lineno}"  # None if a signal handler raised in a loop's jump back
    return encodable(f"  {place}{number} {frame.name}{code}")


def _is_installed(filename: str) -> bool:
    return filename.startswith(_INSTALLED)


def _installed_prefixes() -> tuple[str, ...]:
    """Return the path prefixes of Python's own and installed code, this package and ``<frozen importlib>`` included."""
    paths = sysconfig.get_paths()
    homes = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
    return (*(home + os.sep for home in sorted(homes)), PACKAGE_PATH, "<")


_INSTALLED = _installed_prefixes()
