"""``smddp console``: serve the web pages from a shell."""

from __future__ import annotations

import signal
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from smddp.cli.options import whole_number
from smddp.display_text import shown_error

if TYPE_CHECKING:
    from estimators.console.jobs import JobSource

NEEDED = ("starlette", "uvicorn", "jinja2")
"""The packages of the extra ``console``."""
_LOOK_SECONDS = 0.5


def console(
    local: Annotated[bool, typer.Option("--local", help="Show the local platform, of smddp local up.")] = False,
    directory: Annotated[
        Path | None, typer.Option(help="With --local: the directory it runs on; .smddp by default.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="The AWS region; by default the configured one.")] = None,
    profile: Annotated[str | None, typer.Option(help="The profile of ~/.aws to use.")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Show buttons that stop and resume jobs, and interrupt local ones.")
    ] = False,
    port: Annotated[int, whole_number(least=0, most=65535, help="Port on 127.0.0.1; 0 takes any free one.")] = 0,
) -> None:
    """Show training jobs in a browser, until Ctrl-C: those on AWS, as boto3 is configured, or on the local platform.

    Without --write the pages change nothing. The printed link opens the console once; then the next link is printed.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        _fail(f"{', '.join(missing)} not installed. Do: pip install 'smddp[console]'")
    if local and (region or profile):
        raise typer.BadParameter("--region and --profile are for AWS: leave them out, or --local.")
    if directory is not None and not local:
        raise typer.BadParameter("--directory is the local platform's: add --local.")
    # Here and below, because `smddp --help` imports this file, and must not wait for boto3 or a web server.
    from estimators.console.server import Console
    from estimators.errors import EstimatorError
    from estimators.local.errors import LocalPlatformError

    try:
        source = _local(directory or Path(".smddp"), write) if local else _aws(region, profile, write)
        server = Console(source, port=port, entered=lambda link: typer.echo(f"opened. In another browser: {link}"))
    except (EstimatorError, LocalPlatformError) as error:
        _fail(str(error))
    end = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: end.set())
    with server:
        typer.echo(f"The console of {source.name}, until Ctrl-C: {server.link}")
        while server.wait(_LOOK_SECONDS) and not end.is_set():
            pass


def _local(directory: Path, write: bool) -> JobSource:
    """Return the platform that runs on a directory, or raise LocalPlatformError if none does."""
    from estimators.console.jobs import JobSource
    from estimators.local.access import KeptAccess, ask

    access = KeptAccess(directory.absolute()).require_running()

    def interrupt(name: str) -> None:
        ask(access, "InterruptTrainingJob", {"TrainingJobName": name}, service="SmddpLocal")

    name = f"local platform · {directory}"
    return JobSource(name=name, session=access.boto_session(), may_write=write, interrupt=interrupt if write else None)


def _aws(region: str | None, profile: str | None, write: bool) -> JobSource:
    """Return the account that boto3 is configured for; raise EstimatorError without a region, profile or keys."""
    import boto3
    from botocore.exceptions import BotoCoreError

    from estimators.console.jobs import JobSource
    from estimators.errors import EstimatorError

    try:
        session = boto3.Session(region_name=region, profile_name=profile)
        if session.region_name is None:
            raise EstimatorError("no AWS region is configured. Give --region, or set AWS_DEFAULT_REGION.")
        if session.get_credentials() is None:
            raise EstimatorError(
                "no AWS credentials are configured. Give --profile, or set AWS_PROFILE; --local shows the platform of "
                "this machine."
            )
        return JobSource(name=f"AWS · {session.region_name}", session=session, may_write=write)
    except (BotoCoreError, ValueError) as error:  # an unknown profile, or an invalid region
        if isinstance(error, EstimatorError):
            raise
        raise EstimatorError(f"AWS can't be asked: {error}. Correct the configuration of AWS.") from error


def _fail(reason: str) -> NoReturn:
    typer.echo(f"smddp console: {shown_error(reason)}", err=True)
    raise typer.Exit(2)
