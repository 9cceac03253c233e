"""The program of one rank of ``smddp collectives``, and its report: table, JSON lines or plot."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from smddp.collectives.measure import Measurement, Setting, group_of_all, measure
from smddp.collectives.operations import OPERATIONS
from smddp.display_text import as_memory
from smddp.distributed import Membership, join, leave
from smddp.distributed.device import backend_of

logger = logging.getLogger(__name__)

_WIDTH = 110  # if the output is not a terminal
_RESULTS = {True: "right", False: "[bold red]WRONG[/]", None: ""}


@dataclass(kw_only=True, slots=True, frozen=True)
class Options:
    """The operations to measure, and the files for the results."""

    operations: tuple[str, ...]
    """Names of operations; all if empty."""
    sizes: tuple[int, ...]
    """Bytes of the largest buffer on a rank."""
    seconds: float
    """Seconds to repeat each operation at each size."""
    json_lines: str | None = None
    plot: str | None = None

    def as_json(self) -> str:
        """Return the text for `from_json`."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Options:
        """Read the options from a text."""
        values = json.loads(text)
        return cls(**values | {"operations": tuple(values["operations"]), "sizes": tuple(values["sizes"])})


def run_rank(options: Options) -> int:
    """Join the ranks, measure, and report on rank 0; return exit code 1 if a result was wrong."""
    membership = join()
    is_main = membership.cluster.is_main
    chosen = [each for each in OPERATIONS if not options.operations or each.name in options.operations]
    measurements: list[Measurement] = []
    for found in measure(chosen, settings(membership), options.sizes, seconds=options.seconds):
        if is_main and (not measurements or measurements[-1].operation != found.operation):
            logger.info("%s on %s", found.operation, found.backend)
        measurements.append(found)
    if is_main:
        _report(measurements, options)
    leave()
    return 1 if any(each.is_right is False for each in measurements) else 0


def settings(membership: Membership) -> list[Setting]:
    """Return one setting per backend: gloo for CPU tensors if available, and the GPU's backend if there are GPUs."""
    cluster = membership.cluster
    on = {torch.device("cpu"): "gloo"} if membership.control_device.type == "cpu" else {}
    if membership.device.type != "cpu":
        carries = backend_of(membership.backend, membership.device.type)
        on |= {} if carries is None else {membership.device: carries}
    return [
        Setting(
            rank=cluster.rank,
            world_size=cluster.world_size,
            backend=backend,
            device=device,
            group=group_of_all(backend=backend),
        )
        for device, backend in on.items()
    ]


def _report(measurements: list[Measurement], options: Options) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    _print_table(measurements, console)
    if options.json_lines is not None:
        _write_json(measurements, Path(options.json_lines))
    if options.plot is not None:
        _write_plot(measurements, Path(options.plot))


def _print_table(measurements: Sequence[Measurement], console: Console) -> None:
    """Print a table for each backend, and below it the operations that the backend lacks."""
    for backend, device in dict.fromkeys((each.backend, each.device) for each in measurements):
        own = [each for each in measurements if (each.backend, each.device) == (backend, device)]
        table = Table(title=f"{backend} on {device}, {own[0].ranks} rank(s)", title_justify="left")
        table.add_column("operation")
        table.add_column("reduce")
        for heading in ("size", "µs", "algorithm GB/s", "bus GB/s"):
            table.add_column(heading, justify="right")
        table.add_column("result")
        for each in own:
            if each.seconds is not None:
                table.add_row(
                    each.operation,
                    each.reduction or "",
                    as_memory(each.size) if each.size else "",
                    f"{each.seconds * 1e6:.1f}",
                    _gigabytes(each.algorithm_bandwidth),
                    _gigabytes(each.bus_bandwidth),
                    _RESULTS[each.is_right],
                )
        console.print(table)
        for each in own:
            if each.lacks is not None:
                reduction = f" with {each.reduction}" if each.reduction else ""
                console.print(f"{backend} lacks {each.operation}{reduction}: {each.lacks}", markup=False)


def _write_json(measurements: Sequence[Measurement], path: Path) -> None:
    """Write one JSON object per line: the fields of `Measurement`, and both bandwidths in bytes a second."""
    with path.open("w") as file:
        for each in measurements:
            bandwidths = {"algorithm_bandwidth": each.algorithm_bandwidth, "bus_bandwidth": each.bus_bandwidth}
            file.write(json.dumps(asdict(each) | bandwidths) + "\n")


def _write_plot(measurements: Sequence[Measurement], path: Path) -> None:
    """Plot bus bandwidth and latency over size, with a line for each operation; of reductions only SUM."""
    from matplotlib.figure import Figure  # optional: --plot needs it

    figure = Figure(figsize=(12, 5), layout="constrained")
    bandwidth, latency = figure.subplots(1, 2)
    shown = [each for each in measurements if each.seconds is not None and each.reduction in (None, "SUM")]
    for name in dict.fromkeys((each.operation, each.backend) for each in shown if each.size):
        line = [each for each in shown if (each.operation, each.backend) == name]
        label = f"{name[0]} ({name[1]})"
        sizes = [each.size for each in line]
        bandwidth.plot(sizes, [(each.bus_bandwidth or 0.0) / 1e9 for each in line], marker="o", label=label)
        latency.plot(sizes, [(each.seconds or 0.0) * 1e6 for each in line], marker="o", label=label)
    for axes, title in ((bandwidth, "bus bandwidth, GB/s"), (latency, "time of a call, µs")):
        axes.set(xscale="log", yscale="log", xlabel="bytes of the largest buffer on a rank", title=title)
        axes.grid(visible=True, which="both", alpha=0.3)
    latency.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=120)


def _gigabytes(bandwidth: float | None) -> str:
    return "" if bandwidth is None else f"{bandwidth / 1e9:.3f}"


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    sys.exit(run_rank(Options.from_json(sys.argv[1])))
