"""``smddp sbatch`` and ``smddp export``: a submit script's job as a batch script of Slurm, or a job file of OpenPAI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NoReturn

import typer

from smddp.cli.options import whole_number
from smddp.display_text import shown_error


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
    from estimators.submit_script.jobs import first_job

    data = _directories("sbatch", channel)
    for name, directory in data.items():
        if not directory.is_dir():
            _fail("sbatch", f"--channel {name}={directory}: there is no directory {directory} here.")
    if strange := [option for option in options if not option.startswith("-") or "\n" in option]:
        _fail("sbatch", f"{strange[0]!r} is no option for sbatch: write --name=value, with the equals sign.")
    try:
        job = PortableJob.of(first_job(submit), data={name: path.resolve() for name, path in data.items()})
    except EstimatorError as error:
        _fail("sbatch", str(error))
    _tell_of_requirements(job.requirements)
    if run_dir is not None and ":/" in str(run_dir):
        _fail("sbatch", f"--run-dir {run_dir} is no directory: give one that all nodes see under this path.")
    where = str((run_dir or Path("runs") / job.name).expanduser().absolute())
    what = f"Written by smddp sbatch from {submit}: what it would train on {job.hosts} × {job.instance_type}."
    typer.echo(batch_script(job, options=options, run_dir=where, what=what), nl=False)


def export(
    submit: Annotated[Path, typer.Argument(help="The script that calls Estimator.fit().")],
    cpus: Annotated[int, whole_number(help="Cores of each host.")],
    memory_mb: Annotated[int, whole_number(help="Memory of each host, in MB.")],
    gpus: Annotated[int, whole_number(help="GPUs of each host.")],
    run_dir: Annotated[Path, typer.Option(help="Model, output and checkpoints, on storage that all hosts share.")],
    openpai: Annotated[bool, typer.Option("--openpai", help="Write a job file of OpenPAI, the one format there is.")],
    image: Annotated[
        str | None,
        typer.Option(help="A Docker image with smddp and what the script needs; the job's image_uri if left out."),
    ] = None,
    channel: Annotated[
        list[str],
        typer.Option(metavar="NAME=DIRECTORY", help="Where the containers see a channel's data."),
    ] = [],  # noqa: B006  # typer makes a new one
    code: Annotated[
        Path | None, typer.Option(help="Where the containers see the source directory, if not where it is here.")
    ] = None,
    python: Annotated[str, typer.Option(help="The Python of the image.")] = "python3",
) -> None:
    """Print a job file that trains elsewhere what SUBMIT would train on SageMaker; nothing is sent.

    smddp export --openpai submit.py --image IMAGE --cpus 8 --memory-mb 65536 --gpus 4 --run-dir /mnt/run > job.yaml
    """
    from estimators.errors import EstimatorError
    from estimators.export.openpai import Container, job_file
    from estimators.export.portable_job import PortableJob
    from estimators.submit_script.jobs import first_job

    del openpai  # the command line requires it: it names the format
    data = _directories("export", channel)
    for path in (run_dir, *data.values(), *([] if code is None else [code])):
        if not path.is_absolute():
            _fail("export", f"{path} is a directory of the containers: give its absolute path.")
    try:
        sent = first_job(submit)
        job = PortableJob.of(sent, data=data, code=code)
        uri = image or sent.estimator.arguments.get("image_uri") or ""
        container = Container(image=uri, cpus=cpus, memory_mb=memory_mb, gpus=gpus)
    except EstimatorError as error:
        _fail("export", str(error))
    _tell_of_requirements(job.requirements)
    what = f"Written by smddp export from {submit}: what it would train on {job.hosts} × {job.instance_type}."
    typer.echo(job_file(job, container, run_dir=str(run_dir), python=python, what=what), nl=False)


def _directories(command: str, channels: list[str]) -> dict[str, Path]:
    """Parse the ``NAME=DIRECTORY`` texts of --channel: return each channel's directory by channel name."""
    data = {}
    for given in channels:
        name, _, directory = given.partition("=")
        if not (name and directory):
            _fail(command, f"--channel {given}: write NAME=DIRECTORY, such as training=/nfs/digits.")
        data[name] = Path(directory)
    return data


def _tell_of_requirements(file: Path | None) -> None:
    if file is not None:
        typer.echo(f"Install {file} where the job runs: only SageMaker does so by itself.", err=True)


def _fail(command: str, reason: str) -> NoReturn:
    typer.echo(f"smddp {command}: {shown_error(reason)}", err=True)
    raise typer.Exit(2)
