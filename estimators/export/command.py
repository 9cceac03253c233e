"""``smddp sbatch``: a submit script's job as a batch script of Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer


def sbatch(
    submit: Annotated[Path, typer.Argument(help="The script that calls Estimator.fit().")],
    options: Annotated[
        list[str], typer.Argument(metavar="[-- OPTIONS]", help="Options for sbatch, such as --partition=gpu.")
    ] = [],  # noqa: B006  # typer makes a new one
    channel: Annotated[
        list[str],
        typer.Option(metavar="NAME=DIRECTORY", help="Where the nodes see a channel's data."),
    ] = [],  # noqa: B006  # typer makes a new one
    run_dir: Annotated[
        Path | None, typer.Option(help="Model, output and checkpoints, where all nodes see it: runs/<job> by default.")
    ] = None,
) -> None:
    """Print a batch script that trains on Slurm what SUBMIT would train on SageMaker; nothing is sent.

    smddp sbatch submit.py -- --partition=gpu --gpus-per-node=4 > train.sbatch, then sbatch train.sbatch.
    """
    from estimators.errors import EstimatorError
    from estimators.export.batch_script import batch_script
    from estimators.export.portable_job import PortableJob
    from estimators.export.submit_script import first_job

    data = {}
    for given in channel:
        name, _, directory = given.partition("=")
        if not (name and directory):
            _fail(f"--channel {given}: write NAME=DIRECTORY, such as training=/nfs/digits.")
        if not Path(directory).is_dir():
            _fail(f"--channel {given}: there is no directory {directory} here.")
        data[name] = Path(directory).resolve()
    if strange := [option for option in options if not option.startswith("-") or "\n" in option]:
        _fail(f"{strange[0]!r} is no option for sbatch: write --name=value, with the equals sign.")
    try:
        job = PortableJob.of(first_job(submit), data=data)
    except EstimatorError as error:
        _fail(str(error))
    where = str((run_dir or Path("runs") / job.name).absolute())
    what = f"Written by smddp sbatch from {submit}: what it would train on {job.hosts} × {job.instance_type}."
    typer.echo(batch_script(job, options=options, run_dir=where, what=what), nl=False)


def _fail(reason: str) -> NoReturn:
    typer.echo(f"smddp sbatch: {reason}", err=True)
    raise typer.Exit(2)
