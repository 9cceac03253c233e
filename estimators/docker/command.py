"""``smddp image ...``: training images from a shell."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import typer

from smddp.display_text import shown_error

app = typer.Typer(no_args_is_help=True, help="Build training images, the containers that jobs run in.")


@app.callback()
def _group() -> None:
    """Keep `build` a subcommand: typer drops the name of an only command."""


@app.command()
def build(
    target: Annotated[
        Literal["smddp", "toolkit"],
        typer.Option(help="Whose `train` it runs: smddp's own, or that of AWS's training toolkit."),
    ] = "smddp",
    base: Annotated[
        str, typer.Option(help="The image it starts from, of Debian or Ubuntu. What that has already stays.")
    ] = "python:3.11-slim",
    tag: Annotated[
        str | None, typer.Option(help="Its name: by default smddp-training, or smddp-training:toolkit.")
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option(help="What pip installs first, such as 'torch==2.8.0'; else the base's, or the tested one."),
    ] = None,
    network: Annotated[str | None, typer.Option(help="The network of the build's steps, such as host.")] = None,
) -> None:
    """Build a training image from the installed smddp."""
    from estimators.docker.build import TrainingImage
    from estimators.docker.build import build as build_image
    from estimators.docker.docker_program import DockerError, docker

    tag = tag or ("smddp-training" if target == "smddp" else "smddp-training:toolkit")
    image = TrainingImage(tag=tag, target=target, base=base, torch=torch, network=network)
    began = time.monotonic()
    try:
        build_image(image)
        size = int(docker("image", "inspect", "--format", "{{.Size}}", tag))
    except DockerError as error:
        typer.echo(f"smddp image: {shown_error(str(error))}", err=True)
        raise typer.Exit(1) from error
    except KeyboardInterrupt as stop:
        typer.echo("smddp image: stopped. The next build continues after the last step that ended.", err=True)
        raise typer.Exit(130) from stop
    typer.echo(f"{tag}: {size / 1e9:.1f} GB, in {time.monotonic() - began:.0f} s")
