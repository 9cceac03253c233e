"""The command line, ``smddp ...``: each command is a few lines over a library function.

Packages that smddp must not import (the local platform, the demo) add their commands through the entry point group
``smddp.commands``; such a command is loaded when it is asked for. No module that is slow to import is imported here, so
that ``smddp --help`` and the first line of ``smddp run`` are fast.
"""

from __future__ import annotations

import inspect
import logging
import os
import pkgutil
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from smddp._version import __version__
from smddp.cli.help_panels import PanelGroup
from smddp.cli.options import decimal_number, plot_file, whole_number, written_file
from smddp.display_text import shown_text
from smddp.errors import HyperparameterError, SmddpError

if TYPE_CHECKING:
    from smddp.collectives.program import Options

_HELP = "Managed PyTorch training, SageMaker-style: here and on AWS."
_LOADED_LATER = {
    "checkpoints": "smddp.cli.checkpoints:app",
    "completion": "smddp.cli.completion:completion",
    "doctor": "smddp.cli.doctor:doctor",
    "goodput": "smddp.cli.goodput:goodput",
}
_FIRST = ("run", "plan", "local", "rehearse", "demo", "doctor")  # what a newcomer looks for


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"smddp {__version__}")
        raise typer.Exit


class _Commands(PanelGroup):
    """The commands, each loaded when it is asked for. The list of commands loads all."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's
        """Return the names of the commands, in the order of the help: the first ones, then the others by name."""
        names = sorted({*self.commands, *_LOADED_LATER, *self._of_other_packages})
        return [*(name for name in _FIRST if name in names), *(name for name in names if name not in _FIRST)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none of this name."""
        if cmd_name not in self.commands and (found := self._load(cmd_name)) is not None:
            self.commands[cmd_name] = _as_command(cmd_name, found)
        command = super().get_command(ctx, cmd_name)
        if command is None:
            from smddp.cli.installation import outdated

            if (older := outdated()) is not None:
                ctx.fail(f"No such command {cmd_name!r}: {older.found}. Do: {older.remedy}")
            for name in self.list_commands(ctx):  # typer suggests the name of a loaded command
                self.get_command(ctx, name)
        return command

    def help_of(self, ctx: Any, name: str) -> str:
        """Return the help of a command, without making a command of its function, which takes longer."""
        if name in self.commands:
            return super().help_of(ctx, name)
        found = self._load(name)
        return (found.info.help if isinstance(found, typer.Typer) else inspect.getdoc(found)) or ""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; after Ctrl-C exit with 130. A command that can say what is left says it, and exits itself."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            typer.echo(f"smddp {ctx.invoked_subcommand}: interrupted", err=True)
            raise typer.Exit(130) from interrupt

    @cached_property
    def _of_other_packages(self) -> Mapping[str, str]:
        from importlib.metadata import entry_points

        return {entry.name: entry.value for entry in entry_points(group="smddp.commands")}

    def _load(self, name: str) -> Any:
        """Return the function or the ``Typer`` of a command; None if it is unknown."""
        value = _LOADED_LATER.get(name) or self._of_other_packages.get(name)
        if value is None:
            return None
        try:
            return pkgutil.resolve_name(value)
        except (ImportError, AttributeError) as error:
            from smddp.cli.installation import outdated

            if (older := outdated()) is None:
                raise
            raise SmddpError(f"{error}: {older.found}. Do: {older.remedy}") from error


def _as_command(name: str, found: Any) -> Any:
    group = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        group.add_typer(found, name=name, cls=PanelGroup)
    else:
        group.command(name)(found)
    return typer.main.get_group(group).commands[name]


app = typer.Typer(
    name="smddp",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # which keeps typer from importing rich
    help=_HELP,
)


@app.callback(help=_HELP)
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options of ``smddp`` itself."""


_SIZE = re.compile(r"([0-9]+) ?(B|KiB|MiB|GiB)?")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_LARGEST = 4 * 2**30
_SIZES = ("1KiB", "64KiB", "4MiB")


@app.command()
def collectives(
    processes_per_node: Annotated[
        int | None, whole_number(least=1, help="Ranks to start here: by default one a GPU, or two.")
    ] = None,
    operation: Annotated[
        list[str] | None, typer.Option(help="Only this one, such as all_reduce; may be repeated.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="Bytes of the largest buffer: 1024, 64KiB, 4MiB; may be repeated.")
    ] = None,
    seconds: Annotated[
        float, decimal_number(least=0.0, most=60.0, help="How long each is repeated at each size.")
    ] = 0.1,
    json: Annotated[
        Path | None, typer.Option(help="Write each measurement to this file, one JSON object a line.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw bandwidth and latency over size into this file (.png, .svg).")
    ] = None,
) -> None:
    """Check and time every communication of torch.distributed.

    Under torchrun, srun, mpirun or in a job, this measures the ranks started there; otherwise it starts ranks itself.
    """
    from smddp.cluster import Cluster
    from smddp.collectives.program import Options, run_rank

    options = Options(
        operations=_names(operation or []),
        sizes=tuple(_byte_sizes(text) for text in size or _SIZES),
        seconds=seconds,
        json_lines=None if json is None else written_file(json),
        plot=None if plot is None else plot_file(plot),
    )
    if Cluster.detect().launcher == "single":
        raise typer.Exit(_start_ranks(options, processes_per_node))
    if processes_per_node is not None:
        raise typer.BadParameter("The ranks are started already, by the launcher: leave --processes-per-node out.")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    raise typer.Exit(run_rank(options))


def _start_ranks(options: Options, processes_per_node: int | None) -> int:
    import tempfile

    from smddp.cluster.gpus import count_gpus, count_visible
    from smddp.collectives import program
    from smddp.launch.local import run_local

    ranks = processes_per_node or max(count_visible(count_gpus(os.environ), os.environ), 2)
    with tempfile.TemporaryDirectory() as directory:
        return run_local(program.__file__, [options.as_json()], processes_per_node=ranks, run_dir=directory)


def _names(given: list[str]) -> tuple[str, ...]:
    from smddp.collectives.operations import OPERATIONS

    known = [each.name for each in OPERATIONS]
    if unknown := [name for name in given if name not in known]:
        raise typer.BadParameter(f"{', '.join(unknown)}: there is {', '.join(known)}.")
    return tuple(given)


def _byte_sizes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    size = int(found[1]) * _UNITS[found[2] or "B"] if found else 0
    if not 0 < size <= _LARGEST:
        raise typer.BadParameter(f"{text!r} is no size: give bytes, KiB, MiB or GiB, such as 64KiB, up to 4GiB.")
    return size


@app.command()
def env() -> None:
    """Show the cluster this process is part of, and the variable that decided each field."""
    from rich.console import Console
    from rich.table import Table

    from smddp.cluster import Cluster
    from smddp.job import CHECKPOINT_URI_VARIABLE, Job

    cluster = Cluster.detect()
    table = Table("field", "value", "decided by", title=f"launcher: {cluster.launcher}", title_justify="left")
    for field, value, source in cluster.explain():
        table.add_row(field, str(value), source)
    job = Job.detect(cluster=cluster)
    if job.on_sagemaker:  # outside a job these depend on the script's name
        for field in ("name", "code_dir", "model_dir", "output_dir", "checkpoint_dir"):
            table.add_row(f"job.{field}", str(getattr(job, field)), "/opt/ml")
        for channel, path in job.channels.items():
            table.add_row(f"job.channels[{channel!r}]", str(path), "/opt/ml")
    if job.checkpoint_s3_uri is not None:
        decided_by = "/opt/ml" if job.checkpoints_are_copied else CHECKPOINT_URI_VARIABLE
        table.add_row("job.checkpoint_s3_uri", job.checkpoint_s3_uri, decided_by)
    Console().print(table)


_REFUSED_COMMAND_LINE = 2
"""The exit code of a script whose argparse refuses its command line, and of smddp for a user's mistake."""


# Options after the script belong to the script; an unknown option before it is an error.
@app.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})
def run(
    context: typer.Context,
    script: Annotated[
        Path,
        typer.Argument(help="The training script. What follows it is its own: options of `smddp run` come before it."),
    ],
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is a module's name, as for python -m: mypackage.train.")
    ] = False,
    nodes: Annotated[
        int | None,
        whole_number(help="Number of machines, simulated here without --node-rank: by default srun's tasks, or one."),
    ] = None,
    processes_per_node: Annotated[
        int | None, whole_number(help="Processes on each machine: by default one a GPU, or one.")
    ] = None,
    node_rank: Annotated[int | None, whole_number(help="This machine's number, 0 to nodes - 1.")] = None,
    master_addr: Annotated[str | None, typer.Option(help="Address of machine 0, with --node-rank.")] = None,
    master_port: Annotated[int | None, whole_number(help="Port on machine 0, with --node-rank.")] = None,
    max_restarts: Annotated[
        int, whole_number(help="How often all ranks start again from the newest checkpoint after one failed.")
    ] = 0,
    timeout: Annotated[
        float | None, decimal_number(help="Seconds that a rank waits for the others: 1800, or SMDDP_TIMEOUT.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Checkpoints, model and outputs; the same directory resumes.")
    ] = None,
    checkpoint_s3_uri: Annotated[
        str | None, typer.Option(help="Where in S3 the checkpoints go instead: s3://bucket/prefix.")
    ] = None,
) -> None:
    """Train a script in processes of this machine, started by torchrun; under srun, on its nodes."""
    from smddp.launch.local import run_local
    from smddp.process.log_format import start_log
    from smddp.process.terminal_line import make_room_for_other_process

    start_log()
    make_room_for_other_process()  # rank 0 may show a live line there
    own = {name for parameter in context.command.params for name in parameter.opts if name.startswith("--")}
    misplaced = [each for each in context.args if each.partition("=")[0] in own]
    notice = (
        f"smddp: {shown_text(' '.join(misplaced))} goes to {shown_text(script.name)}: options of smddp run come before "
        "the script"
    )
    if misplaced:
        typer.echo(notice, err=True)
    try:
        code = run_local(
            script,
            context.args,
            module=module,
            nodes=nodes,
            processes_per_node=processes_per_node,
            node_rank=node_rank,
            master_addr=master_addr,
            master_port=master_port,
            max_restarts=max_restarts,
            timeout=timeout,
            run_dir=run_dir,
            checkpoint_s3_uri=checkpoint_s3_uri,
        )
    except HyperparameterError as error:
        refused = str(error).partition(". ")[0].replace("_", "-")
        if not any(each.partition("=")[0].lstrip("-") in refused for each in misplaced):
            raise
        raise typer.Exit(_REFUSED_COMMAND_LINE) from error  # the line above is the remedy
    if misplaced and code == _REFUSED_COMMAND_LINE:
        typer.echo(notice, err=True)  # again, below the ranks' lines
    raise typer.Exit(code)
