"""A terminal as a person sees it, from what was written to it."""

from __future__ import annotations


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
