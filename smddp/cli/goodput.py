"""``smddp goodput``: the account of a run's wall time, as a table, as JSON and as a picture."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smddp.cli.options import plot_file
from smddp.errors import CheckpointError

if TYPE_CHECKING:
    from smddp.goodput import Account

_COLOURS = {
    "training": "#2a9d63",
    "evaluation": "#8fce9f",
    "data": "#e9c46a",
    "checkpoint": "#f4a261",
    "start": "#9db4c0",
    "lost": "#d1495b",
    "restart": "#7d8597",
    "waiting": "#c9ccd1",
    "hang": "#6a040f",
    "other": "#b8a1d9",
}
_BEFORE = ("waiting", "restart", "start")
"""Parts that come before the others of an attempt."""


def goodput(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run directory, or a directory or s3://bucket/prefix of checkpoints.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the parts of each attempt into this file (.png, .svg).")
    ] = None,
) -> None:
    """Show what the wall time of a run was, over all its attempts.

    The parts are training that counts, evaluation, waits for data, checkpoint stalls, start, lost work, restarts, waits
    between attempts, hangs, and other.
    """
    picture = None if plot is None else plot_file(plot)
    account = _read(run)
    if as_json:
        typer.echo(json.dumps(account.to_json(), indent=2))
    else:
        _show(account)
    if picture is not None:
        _draw(account, picture)


def _read(run: str) -> Account:
    """Return the account of a run; raise CheckpointError if it has no ledger."""
    from smddp.checkpoint.stores import open_store
    from smddp.checkpoint.stores.opening import checkpoints_of_run, no_directory
    from smddp.goodput import read_account

    try:
        store = open_store(checkpoints_of_run(run))
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    account = read_account(store)
    if not account.attempts:
        raise no_directory(store) or CheckpointError(
            f"there is no goodput ledger in {store}: a smddp.Trainer, and a smddp.Checkpointer under smddp.run, keep "
            "one beside their checkpoints; give the directory or s3://bucket/prefix of such a run"
            + "".join(f"\n{problem}" for problem in account.problems)
        )
    return account


def _show(account: Account) -> None:
    from rich.table import Table
    from rich.text import Text

    from smddp.cli.checkpoint_table import print_table
    from smddp.display_text import duration, shown_text
    from smddp.goodput.account import shown_losses

    typer.echo(f"{_goodput(account)} of {duration(account.wall_seconds)}; {shown_losses(account)}")
    parts = Table("part", "seconds", "share")
    parts.columns[1].justify = parts.columns[2].justify = "right"
    for part, seconds in account.seconds.items():
        if seconds:
            parts.add_row(part, f"{seconds:.1f}", f"{account.shares[part]:.1%}")
    print_table(parts)
    attempts = Table("began", "host", "ranks", "steps", "lost steps", "seconds", "training", "end")
    for column in attempts.columns[2:7]:
        column.justify = "right"
    for each in account.attempts:
        attempt, began = each.attempt, datetime.fromtimestamp(each.attempt.began)
        whole = sum(each.seconds.values())
        attempts.add_row(
            f"{began:%Y-%m-%d %H:%M:%S}",
            Text(attempt.host),
            str(attempt.world_size),
            f"{attempt.resumed} to {attempt.step}",
            str(each.lost_steps),
            f"{whole:.1f}",
            f"{each.seconds['training'] / whole if whole else 0:.0%}",
            each.end,
        )
    print_table(attempts)
    if account.most_goodput > account.goodput:
        typer.echo(
            "other includes the training: a loop without a smddp.Trainer does not tell it from evaluation and waits "
            "for data, and its steps are those of its saves"
        )
    for problem in account.problems:
        typer.echo(shown_text(problem))


def _goodput(account: Account) -> str:
    bound = "at most " if account.most_goodput > account.goodput else ""
    return f"goodput {bound}{account.most_goodput:.1%}"


def _draw(account: Account, path: str) -> None:
    """Draw a bar for each attempt, over the time since the first one, and the gaps between them in its bar."""
    from matplotlib.figure import Figure  # optional: --plot needs it

    from smddp.goodput.account import PARTS

    figure = Figure(figsize=(10, 2 + 0.3 * len(account.attempts)), layout="constrained")
    axes = figure.subplots()
    left = 0.0
    for number, each in enumerate(account.attempts):
        for part in (*_BEFORE, *(part for part in PARTS if part not in _BEFORE)):
            if seconds := each.seconds[part]:
                axes.barh(number, seconds, left=left, color=_COLOURS[part], label=part)
                left += seconds
    labels = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    shown = [part for part in PARTS if account.seconds[part]]
    axes.legend([labels[part] for part in shown], shown, loc="center left", bbox_to_anchor=(1.0, 0.5))
    axes.set(xlabel="seconds", ylabel="attempt", title=_goodput(account))
    axes.set_yticks(range(len(account.attempts)), [str(number + 1) for number in range(len(account.attempts))])
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)
