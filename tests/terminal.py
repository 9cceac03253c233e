"""A terminal as a person sees it, from what was written to it."""

from __future__ import annotations

import os
import select
import time

READ_SECONDS = 60.0


def read_until(terminal: int, end: bytes) -> bytes:
    """What a terminal's other side wrote, up to `end`: one read may return a part of what was written at once."""
    output = b""
    deadline = time.monotonic() + READ_SECONDS
    while not output.endswith(end):
        readable, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0))
        assert readable, output
        output += os.read(terminal, 1000)
    return output


def screen(output: bytes) -> tuple[list[str], list[str]]:
    """The lines that stay, and all that was ever at the foot, as a terminal without wrapping shows them."""
    lines, live = [""], []
    for part in output.decode().replace("\x1b[K", "").replace("\r\n", "\n"):
        if part == "\n":
            lines.append("")
        elif part == "\r":  # each line here is erased before another one is written over it
            live.append(lines[-1])
            lines[-1] = ""
        else:
            lines[-1] += part
    return lines, live
