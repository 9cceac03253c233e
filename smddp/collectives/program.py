"""The program of one rank of ``smddp collectives``: ``python .../program.py`` with the options as one JSON text."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from smddp.collectives.measure import Measurement, measure
from smddp.collectives.operation import Setting, group_of_all
from smddp.collectives.operations import OPERATIONS
from smddp.distributed import Membership, join, leave

logger = logging.getLogger(__name__)

_WIDTH = 110  # if the output is no terminal


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
    if membership.device.type == "cuda":
        on[membership.device] = "smddp" if membership.backend == "smddp" else "nccl"
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
    from rich.console import Console

    from smddp.collectives.report import print_table, write_json, write_plot

    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    print_table(measurements, console)
    if options.json_lines is not None:
        write_json(measurements, Path(options.json_lines))
    if options.plot is not None:
        write_plot(measurements, Path(options.plot))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    sys.exit(run_rank(Options.from_json(sys.argv[1])))
