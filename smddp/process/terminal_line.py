"""A live line at the bottom of a terminal, redrawn a few times a second; prints and logs appear above it.

The cursor stays visible, and at the line's start. So the terminal stays usable however the process ends, and the output
of another process overwrites the line. (rich's Live hides the cursor, wraps long log lines at the screen's width, and a
forked worker can inherit its lock locked.)
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TextIO

logger = logging.getLogger(__name__)

PROGRESS_VARIABLE = "SMDDP_PROGRESS"
"""0 turns live lines off."""

_GAP = "  "
_REFRESH_SECONDS = 0.25
_ERASE = "\r\x1b[K"
_LEAST_COLUMNS = 20

_lock = threading.RLock()
"""Guards all writes to the terminal, and `_shown`. A logging handler's lock comes before it when a record is written.
Locked over each fork, so that no child inherits it locked by another thread. The wait lasts as long as one write."""

_shown: TerminalLine | None = None


class TerminalLine:
    """The process's live line on a terminal, one at a time; a thread calls `text(columns)` for its content."""

    def __init__(self, text: Callable[[int], str], stream: TextIO) -> None:
        self._text = text
        self._terminal = stream
        self._at_line_start = True  # whether the output so far ends with a newline
        self._ended = threading.Event()
        self._restore: list[Callable[[], None]] = []
        self._problem: Exception | None = None

    def start(self) -> bool:
        """Show the line; return False if another one is shown."""
        global _shown
        with _lock:
            if _shown is not None:
                return False
            _shown = self
            self._ended.clear()
        self._redirect()  # without the lock, which comes after those of the logging handlers
        threading.Thread(target=self._refresh, name="live line", daemon=True).start()
        return True

    def stop(self) -> None:
        """Erase the line and restore the streams; do nothing if it is not shown."""
        global _shown
        with _lock:
            if _shown is not self:
                return
            self._ended.set()
            if self._at_line_start:
                self._put(_ERASE)
            _shown = None
        for undo in self._restore:  # without the lock, as in `start`
            undo()
        self._restore.clear()

    def write_above(self, stream: TextIO, text: str) -> int:
        """Write the script's text to a stream of the terminal, and redraw the line below it."""
        with _lock:
            if _shown is not self:
                return stream.write(text)
            if self._at_line_start and text:
                self._put(_ERASE)
            written = stream.write(text)
            stream.flush()
            if text:
                self._at_line_start = text.endswith("\n")
            self._draw()
            return written

    def _refresh(self) -> None:
        while not self._ended.is_set():
            with _lock:
                if _shown is self:
                    self._draw()
                problem, self._problem = self._problem, None
            if problem is not None:
                logger.debug("the live line can't be made", exc_info=problem)
            self._ended.wait(_REFRESH_SECONDS)

    def _draw(self) -> None:
        """Write the line, unless the script's last line is incomplete."""
        if self._at_line_start and not self._ended.is_set():
            self._put(None)

    def _put(self, text: str | None) -> None:
        """Write a text to the terminal; None writes the line."""
        try:
            if text is None:
                columns = os.get_terminal_size(self._terminal.fileno()).columns or 80  # 0: unknown width
                text = f"{_ERASE}{self._line(max(columns - 1, _LEAST_COLUMNS))}\r"
            self._terminal.write(text)
            self._terminal.flush()
        except (OSError, ValueError):  # the terminal is gone: training continues without the line
            self._ended.set()

    def _line(self, columns: int) -> str:
        try:
            return self._text(columns)
        except Exception as problem:  # training continues
            self._problem = problem  # logged without the lock
            return ""

    def _redirect(self) -> None:
        """Redirect the script's output above the line."""
        self._restore = _replace_streams(lambda stream: _Above(self, stream))


class _Substitute:
    """Wraps a stream of the terminal, transparently for its writers."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @abstractmethod
    def write(self, text: str) -> int:
        """Write a text, which may be an incomplete line."""

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Above(_Substitute):
    """Writes above this process's live line."""

    def __init__(self, line: TerminalLine, stream: TextIO) -> None:
        super().__init__(stream)
        self._line = line

    def write(self, text: str) -> int:
        return self._line.write_above(self._stream, text)


class _WholeLines(_Substitute):
    """Writes whole lines over another process's live line, which that process then redraws below them."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._kept = ""
        atexit.register(self._write_rest)

    def write(self, text: str) -> int:
        with _lock:
            lines, end, self._kept = (self._kept + text).rpartition("\n")
            if end:
                self._stream.write(f"{_ERASE}{lines}\n")
                self._stream.flush()
        return len(text)

    def _write_rest(self) -> None:
        self._stream.write(self._kept)


def make_room_for_other_process() -> None:
    """Write to the terminal in whole lines, so that another process can show a live line there."""
    _replace_streams(_WholeLines)


def is_watched(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that can show a live line, and live lines are not turned off."""
    on_terminal = stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    return on_terminal and os.environ.get(PROGRESS_VARIABLE) != "0"


def fitting(parts: list[tuple[int, str]], columns: int) -> str:
    """Join the parts in order, without the least important ones (the highest numbers) that do not fit."""
    kept: set[int] = set()
    used = 0
    for index in sorted(range(len(parts)), key=lambda index: parts[index][0]):
        used += len(parts[index][1]) + (len(_GAP) if kept else 0)
        if used > columns:
            break
        kept.add(index)
    return _GAP.join(text for index, (_, text) in enumerate(parts) if index in kept)[:columns]


def _replace_streams(substitute: Callable[[TextIO], Any]) -> list[Callable[[], None]]:
    """Replace each stream to the terminal by a substitute; return functions that restore the streams."""
    restore: list[Callable[[], None]] = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if _is_terminal(stream):
            setattr(sys, name, substitute(stream))
            restore.append(partial(setattr, sys, name, stream))
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and _is_terminal(handler.stream):
            restore.append(partial(handler.setStream, handler.stream))
            handler.setStream(substitute(handler.stream))
    return restore


def _is_terminal(stream: Any) -> bool:
    return stream is not None and not isinstance(stream, _Substitute) and is_watched(stream)


def _leave_to_parent() -> None:
    """Forget the line in a forked child: the line and its thread belong to the parent."""
    global _shown
    _shown = None
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_leave_to_parent)
