"""What the order of an epoch costs: memory, time to the first index, an index, and a seek into the middle.

Each order is measured in processes of its own, as rank 0 of 8 with batches of 256, against the peers that are installed
(`pip install --no-deps torchdata mosaicml-streaming`). Where one needs more than the memory or the time that is
allowed, the table says so; nothing is extrapolated.

    python benchmarks/sampler.py [--sizes 1e6 1e10] [--gigabytes 6] [--seconds 120] [--repeats 3]
    python benchmarks/sampler.py --scale      # 1,024 ranks with 8 workers each, simulated, instead

Targets: at N = 1e10 at most 64 MiB and 10 ms to seek; at most 100 ns an index.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from sampling.contenders import CONTENDERS, GLOBAL_BATCH

INDICES = 1 << 20
"""Timed at most, after the first batch."""

Numbers = dict[str, float]


def measure(name: str, size: int, gigabytes: float) -> Numbers:
    """Return one order at one size, in this process."""
    batches = CONTENDERS[name][1]
    for _ in zip(range(10), batches(100 * GLOBAL_BATCH, 0), strict=False):
        pass  # what it imports is not its cost
    resource.setrlimit(resource.RLIMIT_DATA, (int(gigabytes * 1e9),) * 2)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far

    began = time.perf_counter()
    order = batches(size, 0)
    next(order)
    first = time.perf_counter() - began

    began, count = time.perf_counter(), 0
    for indices in order:
        count += len(indices)
        if count >= INDICES:
            break
    index = (time.perf_counter() - began) / count
    memory = _memory("VmHWM") - before

    del order
    began = time.perf_counter()
    next(batches(size, size // 2 // GLOBAL_BATCH * GLOBAL_BATCH))
    return {"memory": memory, "first": first, "index": index, "seek": time.perf_counter() - began}


def _memory(kind: str) -> int:
    found = re.search(rf"^{kind}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def in_processes(name: str, size: int, *, gigabytes: float, seconds: float, repeats: int) -> Numbers | str:
    """Return the medians, or why there are none. What takes long is measured once."""
    runs: list[Numbers] = []
    command = [sys.executable, __file__, "--one", name, str(size), "--gigabytes", str(gigabytes)]
    for _ in range(repeats):
        began = time.perf_counter()
        try:
            result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            return f"takes more than {seconds:.0f} s"
        if result.returncode:
            last = (result.stderr.strip().splitlines() or [f"ended with {result.returncode}"])[-1]
            is_memory = re.search("MemoryError|can't allocate memory|not enough memory", last)
            return f"needs more than {gigabytes:g} GB" if is_memory else last
        runs.append(json.loads(result.stdout))
        if time.perf_counter() - began > 20:
            break
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def print_costs(options: argparse.Namespace) -> None:
    print(f"Rank 0 of 8, batches of 256; Python {platform.python_version()}, {os.cpu_count()} cores, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}\n")
    print("| N | order | memory, MiB | first index, ms | an index, ns | seek to the middle, ms |")
    print("|---|---|---|---|---|---|")
    for size in options.sizes:
        for name, (package, _) in CONTENDERS.items():
            if find_spec(package) is None:
                answer: Numbers | str = f"not installed: {package}"
            else:
                limits = {"gigabytes": options.gigabytes, "seconds": options.seconds}
                answer = in_processes(name, size, repeats=options.repeats, **limits)
            if isinstance(answer, str):
                print(f"| {size:.0e} | {name} | {answer} | | | |", flush=True)
            else:
                print(f"| {size:.0e} | {name} | {answer['memory'] / 2**20:.1f} | {answer['first'] * 1e3:.2f} ", end="")
                print(f"| {answer['index'] * 1e9:.0f} | {answer['seek'] * 1e3:.2f} |", flush=True)


def print_scale() -> None:
    from sampling.scale import GLOBAL_BATCH, LIVES, WORKERS, epoch, window

    print(
        f"{WORKERS} workers a rank, a global batch of {GLOBAL_BATCH:,}. Whole epochs begin on {LIVES[0]:,} ranks and "
    )
    print(f"resume on {', '.join(f'{ranks:,}' for ranks in LIVES[1:])} at each quarter.\n")
    print("| N | what | read | missing | twice | a rank's workers apart by, micro-batches | state, bytes | s |")
    print("|---|---|---|---|---|---|---|---|")
    steps = 96
    for size in (10**6, 10**7, 10**8, 10**10, 10**15, 2**63):
        whole = size <= 10**8
        scale = epoch(size) if whole else window(size, steps)
        what = "an epoch" if whole else f"{steps} steps from the middle"
        print(f"| {size:.0e} | {what} | {scale.read:,} | {scale.missing} | {scale.twice} ", end="")
        print(f"| {scale.uneven} | {scale.state} | {scale.seconds:.1f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    sizes = [10**6, 10**7, 10**8, 10**9, 10**10]
    parser.add_argument("--sizes", nargs="+", type=lambda text: int(float(text)), default=sizes)
    parser.add_argument("--gigabytes", type=float, default=6, help="that an order may take")
    parser.add_argument("--seconds", type=float, default=120, help="that the measurement of an order may take")
    parser.add_argument("--repeats", type=int, default=3, help="processes; the median counts")
    parser.add_argument("--scale", action="store_true", help="simulate a cluster instead")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]), options.gigabytes)))
    elif options.scale:
        print_scale()
    else:
        print_costs(options)


if __name__ == "__main__":
    main()
