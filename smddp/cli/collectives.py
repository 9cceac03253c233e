"""``smddp collectives``: checks and times the communication between ranks, before a job depends on it."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from smddp.collectives.program import Options

_SIZE = re.compile(r"([0-9]+) ?(B|KiB|MiB|GiB)?")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_LARGEST = 4 * 2**30
_SIZES = ("1KiB", "64KiB", "4MiB")


def collectives(
    processes_per_node: Annotated[
        int | None, typer.Option(min=1, help="Ranks to start here: by default one a GPU, or two.")
    ] = None,
    operation: Annotated[
        list[str] | None, typer.Option(help="Only this one, such as all_reduce; may be repeated.")
    ] = None,
    size: Annotated[
        list[str] | None, typer.Option(help="Bytes of the largest buffer: 1024, 64KiB, 4MiB; may be repeated.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.0, max=60.0, help="How long each is repeated at each size.")] = 0.1,
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
        sizes=tuple(_bytes(text) for text in size or _SIZES),
        seconds=seconds,
        json_lines=None if json is None else _writable(json),
        plot=None if plot is None else _plot(plot),
    )
    if Cluster.detect().launcher == "single":
        raise typer.Exit(_start_ranks(options, processes_per_node))
    if processes_per_node is not None:
        raise typer.BadParameter("The ranks are started already, by the launcher: leave --processes-per-node out.")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    raise typer.Exit(run_rank(options))


def _start_ranks(options: Options, processes_per_node: int | None) -> int:
    from smddp.cluster.gpus import count_gpus, count_visible
    from smddp.collectives import program
    from smddp.launch.local import run_local

    ranks = processes_per_node or max(count_visible(count_gpus(), os.environ), 2)
    with tempfile.TemporaryDirectory() as directory:
        return run_local(program.__file__, [options.as_json()], processes_per_node=ranks, run_dir=directory)


def _names(given: list[str]) -> tuple[str, ...]:
    from smddp.collectives.operations import OPERATIONS

    known = [each.name for each in OPERATIONS]
    if unknown := [name for name in given if name not in known]:
        raise typer.BadParameter(f"{', '.join(unknown)}: there is {', '.join(known)}.")
    return tuple(given)


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(text)
    size = int(found[1]) * _UNITS[found[2] or "B"] if found else 0
    if not 0 < size <= _LARGEST:
        raise typer.BadParameter(f"{text!r} is no size: give bytes, KiB, MiB or GiB, such as 64KiB, up to 4GiB.")
    return size


def _writable(path: Path) -> str:
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"{path} can't be written: give a file in a directory that exists.")
    return str(path.absolute())


def _plot(path: Path) -> str:
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise typer.BadParameter(f"{path}: give a name that ends with .png, .svg or .pdf.")
    if importlib.util.find_spec("matplotlib") is None:
        raise typer.BadParameter("A plot needs matplotlib: pip install matplotlib.")
    return _writable(path)
