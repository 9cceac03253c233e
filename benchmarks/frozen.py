"""What it costs to save a fine-tuned model: with its frozen base, and with a fingerprint of each frozen weight.

The base has 200 MB in bfloat16, the adapters have 1 %. Both ways are saved in turns, each into its own directory, and
the stall is compared with one copy of the base in memory.

    python benchmarks/frozen.py [--saves 10] [--directory DIR]

Target: without the base a save is durable sooner, and has the bytes of the adapters only. Its stall is the time in
which the base is hashed, which finds a weight that has changed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from smddp.checkpoint import Checkpointer, SaveReport

LAYERS, WIDTH, RANK = 25, 2000, 10


def fine_tuned() -> nn.Sequential:
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers.append(nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16).requires_grad_(False))
        layers += [nn.Linear(WIDTH, RANK, bias=False), nn.Linear(RANK, WIDTH, bias=False)]
    return nn.Sequential(*layers)


def saved(run: Checkpointer, step: int) -> tuple[float, SaveReport]:
    started = time.perf_counter()
    run.save(step)
    stall = time.perf_counter() - started
    report = run.wait()
    assert report is not None
    return stall, report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--saves", type=int, default=10)
    parser.add_argument("--directory")
    options = parser.parse_args()
    model = fine_tuned()
    base = [weight for weight in model.parameters() if not weight.requires_grad]
    size = sum(weight.nbytes for weight in base)
    copies = [torch.empty_like(weight) for weight in base]
    rows: dict[str, list[tuple[float, float, int]]] = {"all": [], "without the base": []}
    memcpy = []
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        runs = {name: Checkpointer(Path(directory, name), {"model": model}, save_frozen=name == "all") for name in rows}
        for run in runs.values():
            run.open()
        for step in range(options.saves + 1):
            started = time.perf_counter()
            for copy, weight in zip(copies, base, strict=True):
                copy.copy_(weight)
            memcpy.append(time.perf_counter() - started)
            for name, run in runs.items():
                stall, report = saved(run, step)
                if step:  # the first save takes memory
                    rows[name].append((stall, report.durable_seconds, report.size))
        for run in runs.values():
            run.close()
    one = statistics.median(memcpy[1:])
    print(f"base {size / 1e6:.0f} MB in bfloat16, one copy {1e3 * one:.0f} ms")
    print(f"{'checkpoints with':<18}{'stall':>10}{'÷ copy':>8}{'durable':>10}{'size':>10}")
    for name, each in rows.items():
        stall, seconds, written = (statistics.median(column) for column in zip(*each, strict=True))
        print(f"{name:<18}{1e3 * stall:>7.0f} ms{stall / one:>8.2f}{1e3 * seconds:>7.0f} ms{written / 1e6:>7.1f} MB")


if __name__ == "__main__":
    main()
