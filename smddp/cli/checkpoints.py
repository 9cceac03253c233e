"""``smddp checkpoints ...``: lists, verifies, prunes, chooses, exports and imports checkpoints from a shell.

Each command takes a directory or ``s3://bucket/prefix`` with checkpoints, or one checkpoint in it. torch is imported
only when a command runs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from enum import Enum
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from smddp.cli.options import whole_number
from smddp.errors import CheckpointError, SmddpError

if TYPE_CHECKING:
    from smddp.checkpoint.stores import Store

app = typer.Typer(no_args_is_help=True, help="Look at checkpoints, verify, prune, choose, export and import them.")


class _Mode(str, Enum):
    MAX = "max"
    MIN = "min"


class _Format(str, Enum):
    MODEL = "model"
    SAFETENSORS = "safetensors"
    TORCH = "torch"
    DCP = "dcp"


_Location = Annotated[
    str, typer.Argument(metavar="PATH", help="A directory or s3://bucket/prefix with checkpoints, or one of them.")
]
_Place = Annotated[str, typer.Argument(metavar="PATH", help="A directory or s3://bucket/prefix with checkpoints.")]
_ModeOption = Annotated[_Mode, typer.Option(help="Whether a larger or a smaller value of the metric is better.")]


@app.command("ls")
def list_(
    location: _Location,
    every: Annotated[bool, typer.Option("--all", help="Show all, not only the newest 20.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Verify every byte.")] = False,
) -> None:
    """List the checkpoints with step, epoch, age, size, metrics and validity."""
    from smddp.checkpoint.restore.listing import inspect_each_alone
    from smddp.cli.checkpoint_table import show
    from smddp.storage.parallel import in_parallel

    with _one_line_errors():
        store, steps = _look_for(location)
        shown = list(islice(steps, None if every else 20))
        looks = [partial(inspect_each_alone, store, step, deep=verify) for step in shown]
        infos = in_parallel(looks, threads=1 if verify else 16)  # in S3 each takes a few requests
        show(store, infos, verified=verify)
        if next(steps, None) is not None:
            typer.echo("These are the newest; --all shows the older ones, too.")


@app.command()
def verify(location: _Location) -> None:
    """Verify every byte of every checkpoint.

    The exit code is 1 if a checkpoint is damaged, unreadable or from a newer smddp, or if none is valid.
    """
    from smddp.checkpoint.restore.listing import inspect_each_alone
    from smddp.cli.checkpoint_table import describe, progress

    counts: dict[str, int] = {}
    with _one_line_errors():
        store, steps = _look_for(location)
        chosen = list(steps)
        with progress(len(chosen)) as advance:
            for step in reversed(chosen):
                info = inspect_each_alone(store, step)
                counts[info.status] = counts.get(info.status, 0) + 1
                advance(describe(info, verified=True))
    typer.echo(", ".join(f"{count} {status}" for status, count in sorted(counts.items(), reverse=True)))
    if counts.keys() & {"damaged", "newer", "unreadable"} or "valid" not in counts:
        raise typer.Exit(1)


@app.command()
def prune(
    location: _Place,
    keep_last: Annotated[int, whole_number(help="How many of the newest to keep.")] = 3,
    keep_best: Annotated[int, whole_number(help="How many of the best by --metric to keep.")] = 0,
    metric: Annotated[str | None, typer.Option(help="What decides about the best.")] = None,
    mode: _ModeOption = _Mode.MAX,
    keep_every: Annotated[int | None, whole_number(help="Keep those whose step is a multiple of this.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove the checkpoints that no rule keeps. The newest valid one always stays."""
    from smddp.checkpoint.retention import Retention, plan_pruning
    from smddp.cli.checkpoint_table import describe
    from smddp.display_text import as_size

    with _one_line_errors():
        if (keep_best > 0) != (metric is not None):
            raise CheckpointError("--keep-best needs --metric, and --metric needs --keep-best: give both, or neither")
        keep = Retention(last=keep_last, best=keep_best, metric=metric, mode=mode.value, every=keep_every)
        store, steps = _look_for(location, single=False)
        next(steps, None)
        plan = plan_pruning(store, keep)
        for info in plan.go:
            typer.echo(f"{'would remove' if dry_run else 'to remove'}: {describe(info, verified=False)}")
        typer.echo(f"{len(plan.go)} to remove ({as_size(plan.size)}), {len(plan.stay)} to keep")
        if dry_run or not plan.go:
            return
        if not yes:
            if not sys.stdin.isatty():
                raise CheckpointError("nothing was removed: nobody is here to be asked; --yes removes without asking")
            typer.confirm("Remove them?", abort=True)
        for info in plan.go:
            store.remove(info.step)
        typer.echo(f"removed {len(plan.go)}")


@app.command()
def best(
    location: _Place,
    metric: Annotated[str, typer.Option(help="The metric that decides: one that was saved with the checkpoints.")],
    mode: Annotated[_Mode | None, typer.Option(help="Whether a larger value is better, or a smaller.")] = None,
) -> None:
    """Print the path of the valid checkpoint with the best value of a metric, and nothing else."""
    from smddp.checkpoint.restore.listing import find_best

    with _one_line_errors():
        _look_for(location, single=False)
        found = find_best(location, metric, (mode or _Mode.MAX).value)
        typer.echo(found.path)
        if mode is None:
            typer.echo(f"the largest {metric}; where a smaller one is better, say --mode min", err=True)


@app.command()
def export(
    location: _Location,
    destination: Annotated[
        str, typer.Argument(help="A file or directory that is not there yet; into S3, copy it with aws s3 cp.")
    ],
    format: Annotated[  # noqa: A002 - the option's name
        _Format | None,
        typer.Option(
            help="model: a directory with model.safetensors and model.pt; safetensors, torch: a file; dcp: a directory "
            "for torch.distributed.checkpoint. By default what the destination's suffix says."
        ),
    ] = None,
    part: Annotated[
        list[str] | None,
        typer.Option(help="The part of the state to take; may be given several times.  [default: model]"),
    ] = None,
) -> None:
    """Write the weights of a checkpoint, by default the newest valid one, as files for other tools."""
    from smddp.checkpoint.convert import export as write

    parts = list(dict.fromkeys(part or ["model"]))
    with _one_line_errors():
        manifest = write(location, destination, None if format is None else format.value, parts)
        typer.echo(f"wrote {destination}: {', '.join(parts)} of step {manifest.step}")


@app.command("import")
def import_(
    source: Annotated[
        str,
        typer.Argument(help="A file of torch.save or safetensors, a model.tar.gz, or a directory that DCP saved."),
    ],
    destination: _Place,
    step: Annotated[int, whole_number(help="The optimizer steps taken.")] = 0,
    epoch: Annotated[int, whole_number(help="The epoch under way.")] = 0,
) -> None:
    """Make a checkpoint from another tool's file or directory. No code in it is run."""
    from smddp.checkpoint.convert import import_checkpoint

    with _one_line_errors():
        parts = import_checkpoint(source, destination, step=step, epoch=epoch)
        typer.echo(f"wrote step {step} in {destination}: {', '.join(parts)}")


def _look_for(location: str, *, single: bool = True) -> tuple[Store, Iterator[int]]:
    """Return the store at a location, and the chosen steps, newest first; raise CheckpointError if there is none.

    ``single`` allows the location of one checkpoint.
    """
    from smddp.checkpoint.stores import open_store
    from smddp.checkpoint.stores.opening import location_and_step, no_checkpoint_in

    root, step = location_and_step(location)
    store = open_store(root)
    if Path(root).is_file():
        raise no_checkpoint_in(store)
    if step is None:
        steps = store.newest_first()
        first = next(steps, None)
        if first is None:
            raise no_checkpoint_in(store)
        return store, _before(first, steps)
    if not single:
        raise CheckpointError(f"{location} is one checkpoint: give the location that it lies in, {root}")
    if not store.attempts(step) and store.read_manifest(step) is None:
        raise CheckpointError(f"there is no checkpoint {store.path(step)}")
    return store, iter([step])


def _before(first: int, steps: Iterator[int]) -> Iterator[int]:
    yield first
    yield from steps


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    """Raise a user's mistake as a CheckpointError, which `smddp.cli.main` prints in one line."""
    try:
        yield
    except SmddpError as error:
        raise CheckpointError(" ".join(str(error).split("\n"))) from error
    except BrokenPipeError:
        raise  # `smddp checkpoints ls | head` is not a mistake
    except (OSError, ValueError) as error:
        raise CheckpointError(str(error)) from error
