"""``smddp demo``: check that the extras are installed, then run the demo."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from estimators.console import command as console
from smddp.cli.options import whole_number
from smddp.process.heartbeat import Heartbeat
from smddp.process.terminal_line import is_watched

_NEEDED = ("sagemaker", "moto", "torchvision", "sklearn", "matplotlib", *console.NEEDED)


def demo(
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Where the model, the checkpoints and the loss curve go.")
    ] = Path("runs/demo"),
    epochs: Annotated[int, whole_number(least=4, help="Epochs to train; the interruption comes in mid-epoch.")] = 8,
) -> None:
    """Train digits on two hosts, survive a spot interruption in mid-epoch, get a model."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        typer.echo(
            f"smddp demo: {', '.join(missing)} not installed. Do: pip install 'smddp[local,vision,console]'", err=True
        )
        raise typer.Exit(2)

    typer.echo("smddp demo: two hosts, spot, no AWS, no Docker\n")
    waits = Heartbeat("the demo starts", say=typer.echo)
    shows_live_line = is_watched(sys.stdout)
    try:
        with nullcontext() if shows_live_line else waits:
            from estimators.demo.run import tell  # it imports the SDK, which takes seconds

            tell(output, epochs=epochs, tell_wait=(lambda _: None) if shows_live_line else waits.start)
    except KeyboardInterrupt as interrupt:
        typer.echo("smddp demo: interrupted, and its job ended; the next demo starts from the beginning", err=True)
        raise typer.Exit(130) from interrupt
