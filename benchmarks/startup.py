"""Seconds from the command to the first optimizer step of all ranks, and from a killed rank to the next step.

``torchrun`` and ``smddp run`` start the same script, a DDP loop by hand with AdamW over gloo, in turn, in one run;
``smddp run`` with and without a warm parent. Also the processor time of a run without a kill; the memory of the ranks
before they have a model: their proportional set size, in which a page that several processes share counts once; and
jobs of the local platform, from ``fit()`` to the first step, and from the last line of the script to the return of
``fit()``, one after the other on one platform.

    python -m benchmarks.startup [--ranks 2 8] [--repeats 3] [--fits 4]
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCRIPT = """
import os, signal, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def note(name):
    Path(f"{name}-{os.environ['RANK']}").write_text(str(time.time()))

def main():
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    # torch 2.15 reads the keys of an earlier attempt, also under torchrun.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    store = dist.PrefixStore(attempt, store)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    if int(os.environ["MEASURE_MEMORY"]):
        dist.barrier()
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        kilobytes = next(line.split()[1] for line in lines if line.startswith("Pss:"))
        Path(f"pss-{os.environ['RANK']}").write_text(kilobytes)
        dist.barrier()
    model = DistributedDataParallel(torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        model(torch.randn(32, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            note(f"first-{attempt}")
    if attempt == "0" and int(os.environ["KILL"]):
        dist.barrier()
        if os.environ["RANK"] == "1":
            note("killed")
            os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""
JOB = """
import time
import torch
from torch import nn
import smddp

def main(job: smddp.Job) -> None:
    model = nn.Linear(64, 8)
    trainer = smddp.Trainer(job, model, torch.optim.AdamW(model.parameters()))
    data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randn(256, 8))
    loader = trainer.loader(data, batch_size=32)
    for _epoch in trainer.epochs(1):
        for inputs, targets in trainer.batches(loader):
            trainer.step(nn.functional.mse_loss(trainer.model(inputs), targets))
            print("BENCHMARK", time.time(), flush=True)
    trainer.save_model()
    print("BENCHMARK", time.time(), flush=True)

if __name__ == "__main__":
    smddp.run(main)
"""
WAYS = ("torchrun", "smddp run, cold", "smddp run")


def run(directory: Path, way: str, ranks: int, *, kill: bool = False, memory: bool = False) -> float:
    """Run the script in a new directory, and return when it was started."""
    directory.mkdir()
    (directory / "train.py").write_text(SCRIPT)
    programs = Path(sys.executable).parent
    options = ["--max-restarts", "1"] if kill else []
    if way == "torchrun":
        command = [programs / "torchrun", "--nproc-per-node", str(ranks), "--standalone", *options, "train.py"]
    else:
        command = [programs / "smddp", "run", "--processes-per-node", str(ranks), *options, "train.py"]
    warm = "0" if way.endswith("cold") else "1"
    environ = {"KILL": str(int(kill)), "MEASURE_MEMORY": str(int(memory)), "SMDDP_WARM": warm}
    environ["OMP_NUM_THREADS"] = "1"
    started = time.time()
    subprocess.run(command, cwd=directory, env={**os.environ, **environ}, check=True, capture_output=True, timeout=300)
    return started


def last(directory: Path, name: str) -> float:
    """Return the latest of the ranks' times."""
    return max(float(each.read_text()) for each in directory.glob(f"{name}-*"))


def processor_seconds() -> float:
    """Return the processor time of all ended runs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def row(name: str, seconds: dict[str, list[float]], unit: str = "s") -> str:
    """Return a line of the table: the medians, and their ratio to torchrun's."""
    medians = {way: statistics.median(each) for way, each in seconds.items()}
    base = medians["torchrun"]
    return f"| {name} | " + " | ".join(f"{medians[way]:.2f} {unit} ({medians[way] / base:.2f})" for way in WAYS) + " |"


def measure(directory: Path, all_ranks: Sequence[int], repeats: int) -> None:
    """Print the table."""
    print("| | " + " | ".join(WAYS) + " |\n|---|---|---|---|")
    for ranks in all_ranks:
        first: dict[str, list[float]] = {way: [] for way in WAYS}
        again: dict[str, list[float]] = {way: [] for way in WAYS}
        used: dict[str, list[float]] = {way: [] for way in WAYS}
        for repeat in range(repeats):
            for way in WAYS:
                own = directory / f"{ranks}-{repeat}-{way.replace(' ', '')}"
                started = run(own, way, ranks, kill=True)
                first[way].append(last(own, "first-0") - started)
                again[way].append(last(own, "first-1") - last(own, "killed"))
                before = processor_seconds()
                run(own.with_name(f"{own.name}-whole"), way, ranks)
                used[way].append(processor_seconds() - before)
        print(row(f"{ranks} ranks, to the first step", first))
        print(row(f"{ranks} ranks, from a kill to the next step", again))
        print(row(f"{ranks} ranks, processor time", used), flush=True)
    memory: dict[str, list[float]] = {}
    for way in WAYS:
        own = directory / f"memory-{way.replace(' ', '')}"
        run(own, way, all_ranks[-1], memory=True)
        memory[way] = [sum(int(each.read_text()) for each in own.glob("pss-*")) / 1e6]
    print(row(f"memory of {all_ranks[-1]} ranks", memory, "GB"))


def fit_times(directory: Path, fits: int, **options: Any) -> list[tuple[float, float]]:
    """Return for each of several jobs the seconds to the first step, and from the script's last line to the return."""
    from estimators import Estimator
    from estimators.local import LocalSageMaker

    directory.mkdir()
    (directory / "train.py").write_text(JOB)
    times = []
    with LocalSageMaker() as platform:
        for _ in range(fits):
            estimator = Estimator(
                entry_point=str(directory / "train.py"),
                role=platform.role,
                instance_count=1,
                sagemaker_session=platform.session,
                **options,
            )
            started = time.time()
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                job = estimator.fit()
            returned = time.time()
            told = [float(line.split()[1]) for _, line in job.logs() if line.startswith("BENCHMARK")]
            times.append((told[0] - started, returned - told[-1]))
    return times


def measure_fits(directory: Path, fits: int) -> None:
    """Print the table of the platform's jobs."""
    print("\n| `fit()` of one host | " + " | ".join(f"job {number}" for number in range(1, fits + 1)) + " |")
    print("|---" * (fits + 1) + "|")
    kinds: dict[str, dict[str, Any]] = {
        "one rank": {"instance_type": "ml.m5.xlarge"},
        "torchrun": {"instance_type": "ml.g5.xlarge", "distribution": "torchrun"},
    }
    for kind, options in kinds.items():
        for way in ("cold", "warm"):
            os.environ["SMDDP_WARM"] = "0" if way == "cold" else "1"
            times = fit_times(directory / f"{kind}-{way}".replace(" ", ""), fits, **options)
            for what, index in (("to the first step", 0), ("from the last line to the return", 1)):
                print(f"| {kind}, {way}, {what} | " + " | ".join(f"{each[index]:.2f} s" for each in times) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--fits", type=int, default=4)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        measure(Path(directory), arguments.ranks, arguments.repeats)
        measure_fits(Path(directory), arguments.fits)


if __name__ == "__main__":
    main()
