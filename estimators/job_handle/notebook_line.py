"""The live line of a job in a notebook: a separate output above the log, updated while the cell runs."""

from __future__ import annotations

import contextvars
import html
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from smddp.process.live_text import PROGRESS_VARIABLE

logger = logging.getLogger(__name__)

_REFRESH_SECONDS = 1.0  # each is a message to the browser
_COLUMNS = 100


def in_notebook() -> bool:
    """Return whether this is a notebook's kernel, and live lines are not turned off."""
    from rich.console import Console

    return Console().is_jupyter and os.environ.get(PROGRESS_VARIABLE) != "0"


class NotebookLine:
    """One live line, like `smddp.process.terminal_line.TerminalLine` on a terminal. Its last text stays.

    `text` returns the line for a number of columns; it is called in another thread.
    """

    def __init__(self, text: Callable[[int], str]) -> None:
        self._text = text
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Show the line below the cell's output so far."""
        from IPython.display import display

        show: Callable[..., Any] = display
        handle = show(self._bundle(), raw=True, display_id=True)

        def refresh() -> None:
            while not self._ended.wait(_REFRESH_SECONDS):
                handle.update(self._bundle(), raw=True)
            handle.update(self._bundle(), raw=True)

        # The kernel assigns a message to its cell by the context.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(refresh,), name="live line", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Show the line's final text; ends the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _bundle(self) -> dict[str, str]:
        try:
            text = self._text(_COLUMNS)
        except Exception:
            logger.debug("the live line can't be made", exc_info=True)
            text = ""  # must not end the wait for the job
        return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}
