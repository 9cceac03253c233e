"""``smddp local ...``: the platform from a shell, for programs in any language."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import stat
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from smddp.cli.options import decimal_number, whole_number
from smddp.display_text import counted, shown_error
from smddp.process.program import wait_for

if TYPE_CHECKING:
    from types import FrameType

    from estimators.local import Docker, LocalSageMaker, Slurm

app = typer.Typer(
    no_args_is_help=True, help="Run SageMaker on this machine, without an AWS account; in Docker if asked for."
)

_LOOK_SECONDS = 0.5


def _existing_or_new(text: str | Path) -> Path:
    """Return the directory of an option; refuse an empty text, which as a path is the current directory."""
    if text == "":
        raise typer.BadParameter("It is empty. Give the path of a directory; it is made if missing.")
    directory = Path(text)
    with contextlib.suppress(OSError):  # its user reports it
        if not stat.S_ISDIR(directory.stat().st_mode):
            raise typer.BadParameter(f"{directory} is no directory. Give the path of one; it is made if missing.")
    return directory


_Directory = Annotated[
    Path,
    typer.Option(
        parser=_existing_or_new,
        metavar="DIRECTORY",
        help="Where buckets and objects are kept, from one time to the next.",
    ),
]
_Port = Annotated[int, whole_number(least=0, most=65535, help="Port on 127.0.0.1; 0 takes any free one.")]
_Region = Annotated[str, typer.Option(help="The AWS region to play.")]
_Containers = Annotated[bool, typer.Option("--docker", help="Run jobs in containers of their images.")]
_Images = Annotated[
    list[str],
    typer.Option("--image", metavar="PATTERN=IMAGE", help="The local image for a job's TrainingImage: '*=mine'."),
]
_Cpus = Annotated[float | None, decimal_number(help="With --docker: cores that each host may use.")]
_Memory = Annotated[str | None, typer.Option(help="With --docker: memory that each host may use, such as 8g.")]
_Slurm = Annotated[
    Path | None,
    typer.Option(metavar="SHARED", help="Run jobs on Slurm, their files in this directory, which all nodes see."),
]
_Partition = Annotated[str | None, typer.Option(help="With --slurm: the partition.")]
_SlurmOptions = Annotated[
    list[str], typer.Option("--slurm-option", help="With --slurm: an option for salloc, such as --gpus-per-node=4.")
]


@app.command()
def up(
    directory: _Directory = Path(".smddp"),
    port: _Port = 0,
    region: _Region = "us-east-1",
    docker: _Containers = False,
    image: _Images = [],  # noqa: B006  # typer makes a new one
    cpus: _Cpus = None,
    memory: _Memory = None,
    slurm: _Slurm = None,
    partition: _Partition = None,
    slurm_option: _SlurmOptions = [],  # noqa: B006  # typer makes a new one
) -> None:
    """Run the platform until Ctrl-C, and print how to use it from another shell."""
    end = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        end.set()
        signal.signal(number, signal.default_int_handler)  # a second one ends the jobs at once

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    executor = _executor(slurm, partition, slurm_option, docker, image, cpus, memory)
    with _platform(directory, port=port, region=region, storage="disk", executor=executor) as sagemaker:
        typer.echo(f"# SageMaker, S3 and CloudWatch Logs at {sagemaker.endpoint_url}, until Ctrl-C.")
        typer.echo(f"# Objects are kept in {directory.absolute()}. In another shell:")
        typer.echo(f'eval "$(smddp local env --directory {shlex.quote(str(directory.absolute()))})"')
        typer.echo(f"# A role for the jobs: {sagemaker.role}   A bucket: {sagemaker.default_bucket}")
        while not end.wait(_LOOK_SECONDS):
            sagemaker.check()


@app.command()
def env(directory: _Directory = Path(".smddp")) -> None:
    """Print what a shell needs for all AWS calls to go to the platform that runs on a directory."""
    from estimators.local.access import KeptAccess
    from estimators.local.errors import LocalPlatformError

    kept = KeptAccess(directory.absolute())
    try:
        access = kept.require_running()
    except LocalPlatformError as error:
        _fail(str(error))
    environment = access.environment(kept.directory)
    if foreign := sorted(name for name in os.environ if name.startswith("AWS_") and name not in environment):
        typer.echo(f"unset {' '.join(foreign)}")
    for name, value in environment.items():
        typer.echo(f"export {name}={shlex.quote(value)}")


@app.command()
def chaos(
    faults: Annotated[
        list[str] | None, typer.Argument(metavar="[FAULT…]", help="Set these alone: reclaim step=20, throttle on=s3, …")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Set none: nothing goes wrong any more.")] = False,
    directory: _Directory = Path(".smddp"),
) -> None:
    """Set what goes wrong on the platform that runs on a directory, and show what is set and how often it was met."""
    from botocore.exceptions import BotoCoreError, ClientError

    from estimators.local.access import KeptAccess, ask
    from estimators.local.errors import LocalPlatformError

    if clear and faults:
        raise typer.BadParameter("--clear sets no fault: leave it out, for the faults replace all that were set.")
    try:
        access = KeptAccess(directory.absolute()).require_running()
        if clear or faults:
            ask(access, "SetChaos", {"Faults": " ".join(faults or [])}, service="SmddpLocal")
        described = ask(access, "DescribeChaos", {}, service="SmddpLocal")["Faults"]
    except ClientError as error:
        _fail(error.response["Error"]["Message"])
    except (LocalPlatformError, BotoCoreError, ValueError) as error:
        _fail(str(error))
    for fault in described:
        typer.echo(f"{fault['Fault']}: met {counted(fault['Met'], 'time')}")
    if not described:
        typer.echo("no fault is set")


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    region: _Region = "us-east-1",
    docker: _Containers = False,
    image: _Images = [],  # noqa: B006  # typer makes a new one
    cpus: _Cpus = None,
    memory: _Memory = None,
    slurm: _Slurm = None,
    partition: _Partition = None,
    slurm_option: _SlurmOptions = [],  # noqa: B006  # typer makes a new one
) -> None:
    """Run a program on a temporary platform, which answers all its AWS calls."""
    executor = _executor(slurm, partition, slurm_option, docker, image, cpus, memory)
    with _platform(None, region=region, executor=executor) as sagemaker:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        code = _run(command, {**clean, **sagemaker.environment})
    raise typer.Exit(code)


def _executor(
    slurm: Path | None,
    partition: str | None,
    slurm_options: list[str],
    docker: bool,
    images: list[str],
    cpus: float | None,
    memory: str | None,
) -> Docker | Slurm | None:
    """Return the executor that the options choose; None for processes of this machine."""
    if docker and slurm:
        raise typer.BadParameter("--docker and --slurm: jobs run in containers here, or on Slurm; give one of them.")
    return _cluster(slurm, partition, slurm_options) or _containers(docker, images, cpus, memory)


def _containers(docker: bool, images: list[str], cpus: float | None, memory: str | None) -> Docker | None:
    """Return the Docker settings of the options; None without --docker."""
    from estimators.local import Docker

    if not docker:
        if images or cpus is not None or memory is not None:
            raise typer.BadParameter("--image, --cpus and --memory are for jobs in containers: add --docker.")
        return None
    rules = {}
    for rule in images:
        pattern, _, name = rule.rpartition("=")  # neither a tag nor a digest has one
        if not (pattern and name):
            raise typer.BadParameter(f"--image {rule}: write PATTERN=IMAGE, such as '*/pytorch-training:*=mine'.")
        rules[pattern] = name
    try:
        return Docker(images=rules, cpus=cpus, memory=memory)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _cluster(shared: Path | None, partition: str | None, options: list[str]) -> Slurm | None:
    """Return the Slurm settings of the options; None without --slurm."""
    from estimators.local import Slurm

    if shared is None:
        if partition is not None or options:
            raise typer.BadParameter("--partition and --slurm-option are for jobs on Slurm: add --slurm SHARED.")
        return None
    try:
        return Slurm(shared=shared.absolute(), partition=partition, options=options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


@contextlib.contextmanager
def _platform(
    directory: Path | None,
    *,
    region: str,
    executor: Docker | Slurm | None,
    port: int = 0,
    storage: Literal["memory", "disk"] = "memory",
) -> Iterator[LocalSageMaker]:
    """Run a platform for the block; if it can't run, exit with one line that says why."""
    from estimators.local import LocalSageMaker
    from estimators.local.errors import LocalPlatformError

    try:
        platform = LocalSageMaker(directory, region=region, port=port, storage=storage, executor=executor).start()
    except OSError as error:
        place = tempfile.gettempdir() if directory is None else directory.absolute()
        remedy = "Set TMPDIR to another directory." if directory is None else "Choose another --directory."
        _fail(f"the platform can't work in {place}: {error.strerror or error}. {remedy}")
    except (LocalPlatformError, ValueError) as error:
        _fail(str(error))
    try:
        yield platform
    except LocalPlatformError as error:
        _fail(str(error))
    finally:
        with contextlib.suppress(KeyboardInterrupt):  # the platform ends all the same, at once
            platform.stop()


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the program in the foreground and return its exit code.

    SIGTERM is forwarded to it, and Ctrl-C reaches it by itself.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        for program in started:
            program.send_signal(number)
        if not started:
            early.append(number)

    signal.signal(signal.SIGTERM, forward)  # before the start: SIGTERM may come as soon as the program runs
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        _fail(f"{command[0]}: {error.strerror}")
    started.append(process)
    for number in early:
        process.send_signal(number)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after the start: a program inherits ignored signals
    code = wait_for(process)
    return code if code >= 0 else 128 - code


def _fail(reason: str) -> NoReturn:
    typer.echo(f"smddp local: {shown_error(reason)}", err=True)
    raise typer.Exit(1)
