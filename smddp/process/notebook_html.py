"""HTML that a notebook shows: titles, tables and texts, readable in a light and in a dark theme.

Every value is untrusted: it is escaped, and loses its control sequences. There are no scripts, no colours and no
external resources; the theme of the notebook gives font and colours.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from itertools import chain, repeat

from smddp.display_text import shown_text

_WRAPPED = "white-space:pre-wrap;overflow-wrap:anywhere"
# Jupyter aligns cells to the right and centers tables.
_TABLE, _TEXT, _NUMBER = "margin:0 0 0.8em 0", f"text-align:left;{_WRAPPED}", "text-align:right"


def title(name: str, more: str = "") -> str:
    """Return a line with a name in bold, and more after it."""
    return f"<div><b>{_escaped(name)}</b> {_escaped(more)}</div>"


def text(content: str) -> str:
    """Return a text of several lines, such as a traceback, with its spaces."""
    return f'<pre style="{_WRAPPED}">{_escaped(content)}</pre>'


def table(rows: Iterable[Sequence[str | float]], header: Sequence[str] = ()) -> str:
    """Return a table, or an empty string if it has no rows. Without a header, the first cell of a row is its name.

    All rows have the same number of cells. Floats are shown with four digits. A column with a number is aligned to the
    right.
    """
    listed = list(rows)
    if not listed:
        return ""
    styles = [
        _TEXT if all(isinstance(value, str) for value in column) else _NUMBER for column in zip(*listed, strict=True)
    ]
    head = "".join(map(_cell, repeat("th"), header, styles))
    names = "td" if header else "th"
    body = "".join(f"<tr>{''.join(map(_cell, chain([names], repeat('td')), row, styles))}</tr>" for row in listed)
    return f'<table style="{_TABLE}">{head and f"<thead><tr>{head}</tr></thead>"}<tbody>{body}</tbody></table>'


def _cell(kind: str, value: str | float, style: str) -> str:
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    return f'<{kind} style="{style}">{_escaped(shown)}</{kind}>'


def _escaped(value: str) -> str:
    return html.escape(shown_text(value))
