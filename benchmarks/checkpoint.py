"""What a checkpoint costs: smddp, torch.save, safetensors and torch.distributed.checkpoint (DCP) on the same state.

The state is a transformer's weights with Adam's two moments of each. Each measurement of a contender is a process of
its own, so that no peak of memory is another's; the contenders take turns, and each measures the yardsticks (memcpy,
raw write + fsync) itself, between its own saves: a machine that is busy for a while is busy for all. Medians count.

stall     how long a save holds the training thread
durable   from the save's begin until fsync has returned for the last byte
load      from files in the page cache to tensors, with whatever verification there is
memory    the highest resident size of saving, over that of the process with its state alone
loop      steps a second of a Python launch loop, from the stall's end until all is durable, against those of the same
          loop just before and after; what saves synchronously is given a thread. On its core: without the time in which
          it waited for a core, which on a machine with cores to spare is none. And the worst gap between two steps
first     the stall of the first save, after a warm-up where there is one

    python benchmarks/checkpoint.py [--megabytes 200 2000] [--repeats 5] [--only smddp safetensors] [--directory DISK]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

NAMES = ("smddp", "torch.save", "safetensors", "DCP save", "DCP async_save", "raw write")
COLUMNS = (
    *("stall", "× memcpy", "durable", "× raw + fsync", "load", "× memcpy", "verifies"),
    *("memory", "loop", "on its core", "gap", "first stall × memcpy"),
)
VERIFIES = {"smddp": "every byte"}

Measurement = dict[str, Any]


def measure(name: str, megabytes: int, parent: str | None) -> Measurement:
    with tempfile.TemporaryDirectory(prefix="checkpoint-benchmark-", dir=parent) as directory:
        child = subprocess.run(
            [sys.executable, "-m", "checkpointing.measure", name, str(megabytes), directory],
            cwd=Path(__file__).parent,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if child.returncode:
        raise SystemExit(f"the measurement of {name} failed; see above")
    found: Measurement = json.loads(child.stdout.splitlines()[-1])
    return found


def median(measurements: list[Measurement], kind: str) -> float:
    return statistics.median(value for each in measurements for value in each[kind])


def ratio(measurements: list[Measurement], kind: str, yardstick: str) -> float:
    """Return the median of what each process measured against its own yardstick."""
    return statistics.median(median([each], kind) / memcpy_or(each, yardstick) for each in measurements)


def memcpy_or(measurement: Measurement, yardstick: str) -> float:
    """Return a yardstick of one process; for memcpy the faster way, with one thread or as many as torch uses."""
    if yardstick == "memcpy":
        return min(median([measurement], "memcpy"), median([measurement], "memcpy 1 thread"))
    return median([measurement], yardstick)


def report(found: dict[str, list[Measurement]]) -> None:
    everything = [each for measurements in found.values() for each in measurements]
    count = min(len(measurements) for measurements in found.values())
    size = everything[0]["state"]
    print(f"\n### {size / 1e6:.0f} MB in 224 tensors, median of {count} processes each\n")
    print("| yardstick | ms | GB/s |\n|---|---|---|")
    for kind in "memcpy 1 thread", "memcpy", "raw write":
        seconds = median(everything, kind)
        label = {"memcpy": "memcpy, torch's threads", "raw write": "raw write + fsync"}.get(kind, kind)
        print(f"| {label} | {seconds * 1e3:.1f} | {size / seconds / 1e9:.2f} |")
    print(f"\n| | {' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 1)}|")
    for name, own in found.items():
        cells = [
            name,
            f"{median(own, 'stall') * 1e3:.0f} ms",
            f"{ratio(own, 'stall', 'memcpy'):.2f}",
            f"{median(own, 'durable') * 1e3:.0f} ms",
            f"{ratio(own, 'durable', 'raw write'):.2f}",
            f"{median(own, 'load') * 1e3:.0f} ms",
            f"{ratio(own, 'load', 'memcpy'):.2f}",
            VERIFIES.get(name, "nothing"),
            f"{median(own, 'memory') / size:.2f} ×",
            f"{median(own, 'loop') - 1:+.1%}",
            f"{median(own, 'loop on its core') - 1:+.1%}",
            f"{median(own, 'gap') * 1e3:.0f} ms",
            f"{ratio(own, 'first stall', 'memcpy'):.2f}",
        ]
        print(f"| {' | '.join(cells)} |")
    print("| target | | ≤ 1.10 | | ≤ 1.10 | | ≤ 2.50 | every byte | ≤ 1 × | ≥ -5% | | | |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--megabytes", type=int, nargs="+", default=[200, 2000], help="sizes of the state")
    parser.add_argument("--repeats", type=int, default=5, help="processes for each contender and size")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--directory", help="where to write: on the disk to measure, not in memory")
    arguments = parser.parse_args()

    import torch

    print(f"{date.today()}, torch {torch.__version__}, Python {platform.python_version()}", end=", ")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, in {arguments.directory or tempfile.gettempdir()}")
    for megabytes in arguments.megabytes:
        found: dict[str, list[Measurement]] = {name: [] for name in arguments.only}
        for repeat in range(arguments.repeats):
            for name, measurements in found.items():
                print(f"{megabytes} MB, {repeat + 1} of {arguments.repeats}: {name}", file=sys.stderr)
                measurements.append(measure(name, megabytes, arguments.directory))
        report(found)


if __name__ == "__main__":
    main()
