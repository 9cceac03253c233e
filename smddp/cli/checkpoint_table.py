"""Formats checkpoints for a terminal or a log."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from smddp.display_text import as_size, shown_name

if TYPE_CHECKING:
    from smddp.checkpoint import CheckpointInfo
    from smddp.checkpoint.stores import Store

_MOST_METRICS = 5
"""Columns for metrics; more would leave no room for the other columns."""

_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def show(store: Store, infos: Sequence[CheckpointInfo], *, verified: bool) -> None:
    """Print a table of a store's checkpoints, one row each; ``verified`` says whether every byte was verified."""
    names = sorted({name for info in infos if info.manifest is not None for name in info.manifest.metrics})
    table = Table()
    for column in ("step", "epoch", "age", "size", *names[:_MOST_METRICS]):
        table.add_column(Text(shown_name(column)), justify="right", no_wrap=True)
    table.add_column("state", overflow="fold")
    now = datetime.now(timezone.utc)
    for info in infos:
        manifest = info.manifest
        cells = ["", "", "", *("" for _ in names[:_MOST_METRICS])]
        if manifest is not None:
            metrics = [f"{manifest.metrics[name]:.4g}" if name in manifest.metrics else "" for name in names]
            age = as_age((now - manifest.saved_at).total_seconds())
            cells = [str(manifest.epoch_from_one), age, as_size(manifest.size), *metrics[:_MOST_METRICS]]
        table.add_row(*map(Text, (str(info.step), *cells, _state(info, verified=verified))))
    _write_line(str(store))
    print_table(table)
    if more := names[_MOST_METRICS:]:
        _write_line(f"There are more metrics: {', '.join(map(shown_name, more))}")


def describe(info: CheckpointInfo, *, verified: bool) -> str:
    """Return one line about a checkpoint; it says "valid" only if every byte was verified."""
    size = "" if info.manifest is None else f", {as_size(info.manifest.size)}"
    state = f": {_state(info, verified=verified)}" if verified or not info.valid else ""
    return f"step {info.step}{size}{state}"


def as_age(seconds: float) -> str:
    """Return a duration in its largest unit: ``3 h``."""
    for length, unit in _AGES:
        if seconds >= length:
            return f"{int(seconds / length)} {unit}"
    return "now"


@contextlib.contextmanager
def progress(count: int) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints a line about each of ``count`` finished items, with a bar on a terminal."""
    console = Console()
    if not console.is_terminal:
        yield _write_line
        return
    bar = Progress(
        TextColumn("verifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=count)

        def advance(line: str) -> None:
            bar.console.print(Text(line), soft_wrap=True)
            bar.advance(task)

        yield advance


def _state(info: CheckpointInfo, *, verified: bool) -> str:
    if info.valid:
        return "valid" if verified else "not verified"
    return shown_name(f"{info.status}: {info.reason}")


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def print_table(table: Table) -> None:
    """Print a table; into a file or a pipe at its full width, because wrapping helps only on a terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(
            width=max(console.width, Measurement.get(console, console.options.update(max_width=10_000), table).maximum)
        )
    console.print(table)
