"""What it costs to compare the ranks' weights: a tiny MLP and a ResNet-18 on two CPU ranks with a thread each.

A comparison hashes all weights and all buffers, and reduces a few numbers over the ranks. It is timed after a barrier,
so that a rank waits for no late one. The share is that of 100 steps with one comparison: of 5 ms for the MLP, of its
own fastest step on 8 images of 64 x 64 for the ResNet.

    python benchmarks/replica_check.py [--repeats 50]

Target: with the MLP of trainer_overhead.py, at most 0.5 % of the time at the default of ``check_replicas``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torchvision.models import resnet18

import smddp
from smddp.distributed import Replica, ReplicaCheck
from smddp.distributed.replica_check import hash_of

STEPS, STEP_SECONDS = 100, 0.005
RANKS = 2


def compare(rank: int, directory: str, repeats: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/meet", rank=rank, world_size=RANKS)
    membership = smddp.join()
    models = {"MLP": nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)), "ResNet-18": resnet18()}
    for name, model in models.items():
        replica = Replica(model, membership)
        check = ReplicaCheck(replica, model, membership, None)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        inputs = torch.randn(32, 32) if name == "MLP" else torch.randn(8, 3, 64, 64)
        own_steps = []
        for _ in range(4):
            started = time.perf_counter()
            replica(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            replica.share_buffers()
            own_steps.append(time.perf_counter() - started)
        step_seconds = STEP_SECONDS if name == "MLP" else min(own_steps)
        whole, own = [], []
        for step in range(repeats):
            dist.barrier()
            started = time.perf_counter()
            check.compare(step)
            whole.append(time.perf_counter() - started)
            started = time.perf_counter()
            hash_of(model.parameters())
            own.append(time.perf_counter() - started)
        if rank == 0:
            size = sum(each.nbytes for each in model.state_dict().values()) / 1e6
            seconds = statistics.median(whole)
            print(
                f"{name}, {size:.2f} MB: {seconds * 1e3:.2f} ms a comparison, of which the hash of the weights "
                f"{statistics.median(own) * 1e3:.2f} ms; {seconds / (STEPS * step_seconds):.2%} of {STEPS} steps of "
                f"{step_seconds * 1e3:.0f} ms",
                flush=True,
            )
    smddp.leave()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=50)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        print(f"{RANKS} ranks, torch {torch.__version__}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        mp.spawn(compare, (str(Path(directory)), arguments.repeats), nprocs=RANKS)


if __name__ == "__main__":
    main()
