"""What measuring costs: each operation as ``smddp collectives`` times it, and in a bare loop over torch.distributed.

Both run in the same two processes, in turns; each is compared with the bare loop of the same turn, and the median of
the ratios counts.

    python benchmarks/collectives.py [--seconds 0.3] [--repeats 7]

Target: at most 1.05 times the bare loop.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from smddp.collectives.measure import measure
from smddp.collectives.operations import OPERATIONS
from smddp.collectives.program import settings
from smddp.distributed import join, leave
from smddp.launch.local import run_local

SIZES = (1024, 2**20)


def bare(name: str, size: int, seconds: float) -> float:
    """Seconds of one call, as anyone would time it."""
    ranks = dist.get_world_size()
    whole = torch.ones(size // 4)
    parts = list(torch.ones(size // 4).chunk(ranks))
    part = parts[dist.get_rank()].clone()
    calls: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "all_gather": lambda: dist.all_gather(parts, part),
        "reduce_scatter": lambda: dist.reduce_scatter(part, parts),
    }
    call = calls[name]
    for _ in range(5):
        call()
    dist.barrier()
    started = time.perf_counter()
    for _ in range(20):
        call()
    one = torch.tensor((time.perf_counter() - started) / 20, dtype=torch.float64)
    dist.all_reduce(one, op=dist.ReduceOp.MAX)
    count = max(int(seconds / one.item()), 1)
    dist.barrier()
    started = time.perf_counter()
    for _ in range(count):
        call()
    taken = torch.tensor((time.perf_counter() - started) / count, dtype=torch.float64)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return taken.item()


def rank(seconds: float, repeats: int) -> None:
    membership = join()
    (setting,) = settings(membership)
    if membership.cluster.is_main:
        print(f"torch {torch.__version__}, median of {repeats}\n\n{'':16}{'size':>10}{'bare µs':>10}{'ratio':>8}")
    for operation in OPERATIONS:
        if operation.name not in ("all_reduce", "broadcast", "all_gather", "reduce_scatter"):
            continue
        for size in SIZES:
            turns = []
            for _ in range(repeats):
                own = next(found for found in measure([operation], [setting], [size], seconds=seconds)).seconds or 0.0
                turns.append((own, bare(operation.name, size, seconds)))
            if membership.cluster.is_main:
                ratio = statistics.median(own / plain for own, plain in turns)
                micro = statistics.median(plain for _, plain in turns) * 1e6
                print(f"{operation.name:16}{size:10}{micro:10.1f}{ratio:8.3f}", flush=True)
    leave()


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False)
    arguments.add_argument("--seconds", type=float, default=0.3, help="of one measurement")
    arguments.add_argument("--repeats", type=int, default=7, help="measurements of each; the median counts")
    arguments.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.rank:
        rank(options.seconds, options.repeats)
        return 0
    given = ["--rank", "--seconds", str(options.seconds), "--repeats", str(options.repeats)]
    with tempfile.TemporaryDirectory() as directory:
        return run_local(__file__, given, processes_per_node=2, run_dir=directory)


if __name__ == "__main__":
    sys.exit(main())
