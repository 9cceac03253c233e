"""One line at the foot of a terminal that is written anew a few times a second, below all that is printed.

The cursor stays visible, and at the line's start: whatever ends the process leaves a terminal that can be used, and
what another process prints there covers the line. (rich's Live hides the cursor, wraps long log lines at the screen's
width, and its lock can be held in a forked worker.) What the script prints, and what it logs, goes above the line.
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

_REFRESH_SECONDS = 0.25
_ERASE = "\r\x1b[K"
_LEAST_COLUMNS = 20

_lock = threading.RLock()
"""Held while anything is written to the terminal, and while the process forks: no child inherits it locked."""

_shown: TerminalLine | None = None


class TerminalLine:
    """The line of this process; there is one at a time.

    Args:
        text: Gives the line for a number of columns; called in a thread.
        stream: The terminal.
    """

    def __init__(self, text: Callable[[int], str], stream: TextIO) -> None:
        self._text = text
        self._terminal = stream
        self._at_line_start = True  # whether what others have written so far ends with a line's end
        self._ended = threading.Event()
        self._restore: list[Callable[[], None]] = []

    def start(self) -> bool:
        """Begin to show the line; False where another one is shown already."""
        global _shown
        with _lock:
            if _shown is not None:
                return False
            _shown = self
            self._ended.clear()
            self._redirect()
        threading.Thread(target=self._refresh, name="live line", daemon=True).start()
        return True

    def stop(self) -> None:
        """Erase the line, and leave everything as it was before; do nothing if it is not shown."""
        global _shown
        with _lock:
            if _shown is not self:
                return
            self._ended.set()
            if self._at_line_start:
                self._put(_ERASE)
            for undo in self._restore:
                undo()
            self._restore.clear()
            _shown = None

    def write_above(self, stream: TextIO, text: str) -> int:
        """Write what the script has for one of the terminal's streams, and the line again below it."""
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
            self._ended.wait(_REFRESH_SECONDS)

    def _draw(self) -> None:
        """Write the line, unless the script is in the middle of one of its own."""
        if self._at_line_start and not self._ended.is_set():
            self._put(None)

    def _put(self, text: str | None) -> None:
        """Write to the terminal: a text, or the line."""
        try:
            if text is None:
                columns = os.get_terminal_size(self._terminal.fileno()).columns or 80  # 0: it does not know its width
                text = f"{_ERASE}{self._line(max(columns - 1, _LEAST_COLUMNS))}\r"
            self._terminal.write(text)
            self._terminal.flush()
        except (OSError, ValueError):  # the terminal is gone: a line that nobody sees is no reason to stop training
            self._ended.set()

    def _line(self, columns: int) -> str:
        try:
            return self._text(columns)
        except Exception:
            logger.debug("the live line can't be made", exc_info=True)
            return ""  # no reason to stop training, nor to stop waiting for it

    def _redirect(self) -> None:
        """Let the script's own lines come above this one."""
        self._restore = _replace_streams(lambda stream: _Above(self, stream))


class _Substitute:
    """A stream of the terminal, for those who need not know that there is a live line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @abstractmethod
    def write(self, text: str) -> int:
        """Write a text, which may be a part of a line."""

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Above(_Substitute):
    """What is written comes above the line of this process."""

    def __init__(self, line: TerminalLine, stream: TextIO) -> None:
        super().__init__(stream)
        self._line = line

    def write(self, text: str) -> int:
        return self._line.write_above(self._stream, text)


class _WholeLines(_Substitute):
    """What is written covers the line of another process, which does not know of it: so it comes in whole lines."""

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
    """Let what this process writes to its terminal leave a live line alone that another one shows there."""
    _replace_streams(_WholeLines)


def _replace_streams(substitute: Callable[[TextIO], Any]) -> list[Callable[[], None]]:
    """Put a substitute in the place of each stream to the terminal; return what puts the streams back."""
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
    return stream is not None and not isinstance(stream, _Substitute) and stream.isatty()


def _leave_to_parent() -> None:
    """Forget the line in a forked child: it is the parent's, and so is the thread that writes it."""
    global _shown
    _shown = None
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_leave_to_parent)
