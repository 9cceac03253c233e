"""What a sharded model costs: the Trainer beside a loop by hand, the Checkpointer beside torch.distributed.checkpoint.

All ranks run on this machine, by gloo. The contestants take turns in one run, and medians count.

memory    the most that a rank holds while it makes a model on the meta device and takes steps, over that of a bare
          `fully_shard` loop; the Trainer also holds a copy of the rank's pieces for saves, which is not counted
step      an optimizer step of `smddp.Trainer(parallel=smddp.Sharded(...))`, over that of a bare `fully_shard` loop
stall     how long a save holds the training thread, over a memcpy of the rank's pieces (model and AdamW's two moments)
save      from the save's begin until all is durable, beside DCP's async_save, whose files are flushed, too
load      into the same layout, into one that is divided along the other dimension, and into whole weights on each rank
          (DDP), beside DCP's load; smddp verifies every byte that it reads

    python benchmarks/sharded.py [--ranks 2] [--megabytes 200] [--repeats 5]

Targets: memory and step at most 1.02, stall at most 1.2; save and load faster than DCP.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import smddp
from smddp.checkpoint import Checkpointer, Retention
from smddp.dtensor import local_values
from smddp.job import Job

WIDTH = 512
clock = time.perf_counter


class Block(nn.Module):
    """A residual block of a transformer's MLP."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Add the block's output to its inputs."""
        return inputs + self.outer(torch.relu(self.inner(self.norm(inputs))))


def make(blocks: int, *, dimension: int | None = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(blocks)))
    if dimension is not None:

        def placement(weight: nn.Parameter) -> Shard:
            return Shard(min(dimension, weight.ndim - 1))

        for block in model:
            fully_shard(block, shard_placement_fn=placement)
        fully_shard(model, shard_placement_fn=placement)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def in_turns(repeats: int, **contestants: Callable[[], float]) -> dict[str, float]:
    """Return the median seconds of each contestant on the slowest rank."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            dist.barrier()
            taken = torch.tensor(run())
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            seconds[name].append(float(taken))
    return {name: statistics.median(each) for name, each in seconds.items()}


def timed(action: Callable[[], object]) -> float:
    started = clock()
    action()
    return clock() - started


def steps(repeats: int, directory: Path) -> dict[str, float]:
    batches = [torch.randn(32, WIDTH) for _ in range(20)]
    model, optimizer = make(4)
    own, own_optimizer = make(4, dimension=None)
    job = Job.detect({**os.environ, "SMDDP_RUN_DIR": str(directory / "run")})
    trainer = smddp.Trainer(
        job,
        own,
        own_optimizer,
        parallel=smddp.Sharded(wrap=(Block,)),
        log_every=10**6,
        checkpoints=smddp.CheckpointPolicy(seconds=None),
    )
    trainer.loader(range(10**6), 32 * dist.get_world_size())  # its place in the data is counted; it is not read
    next(trainer.epochs(1))

    def by_hand() -> None:
        for batch in batches:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def by_trainer() -> None:
        for batch in trainer.batches(batches):
            trainer.step(trainer.model(batch).square().mean())

    by_hand(), by_trainer()
    return in_turns(repeats, hand=lambda: timed(by_hand), trainer=lambda: timed(by_trainer))


def blocks_of(megabytes: int) -> int:
    """Return the number of blocks whose weights and moments have so many megabytes."""
    return max(1, round(megabytes * 2**20 / (3 * 4 * (8 * WIDTH**2 + 7 * WIDTH))))


def memory(contestant: str, directory: Path, megabytes: int) -> float:
    """Return the megabytes by which this rank's memory was larger at most than before the model was made."""

    def status(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))

    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, batch = status("VmRSS"), torch.randn(32, WIDTH)
    with torch.device("meta"):
        model = nn.Sequential(*(Block() for _ in range(blocks_of(megabytes))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    if contestant == "trainer":
        job = Job.detect({**os.environ, "SMDDP_RUN_DIR": str(directory / "run")})
        policy = smddp.CheckpointPolicy(seconds=None)
        parallel = smddp.Sharded(wrap=(Block,))
        trainer = smddp.Trainer(job, model, optimizer, parallel=parallel, log_every=10**6, checkpoints=policy)
        for _ in range(5):
            trainer.step(trainer.model(batch).square().mean())
    else:
        for block in (*model, model):
            fully_shard(block)
        model.to_empty(device="cpu")
        for layer in model.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        for _ in range(5):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return status("VmHWM") - before


def saves(repeats: int, directory: Path, megabytes: int) -> dict[str, float]:
    blocks = blocks_of(megabytes)
    model, optimizer = make(blocks)
    other, other_optimizer = make(blocks, dimension=1)
    whole, whole_optimizer = make(blocks, dimension=None)
    for each in (optimizer, other_optimizer, whole_optimizer):
        for weight in (weight for group in each.param_groups for weight in group["params"]):
            weight.grad = torch.zeros_like(weight)
        each.step()
    tensors = [local_values(weight.detach()) for weight in model.parameters()]
    tensors += [local_values(value) for each in optimizer.state.values() for value in each.values()]
    copies = [torch.empty_like(each) for each in tensors]
    saved, number = [directory / "smddp", directory / "dcp"], iter(range(1, 10**6))

    def memcpy() -> None:
        for copy, tensor in zip(copies, tensors, strict=True):
            copy.copy_(tensor)

    def state(of: nn.Module, its: torch.optim.Optimizer) -> dict[str, Any]:
        weights, moments = get_state_dict(of, its)
        return {"model": weights, "optimizer": moments}

    def dcp_save() -> float:
        return timed(lambda: dcp.async_save(state(model, optimizer), checkpoint_id=saved[1]).result())

    def dcp_load(of: nn.Module, its: torch.optim.Optimizer) -> None:
        loaded = state(of, its)
        dcp.load(loaded, checkpoint_id=saved[1])
        set_state_dict(of, its, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])

    def load(of: nn.Module, its: torch.optim.Optimizer) -> float:
        with Checkpointer(saved[0], {"model": of, "optimizer": its}) as reader:
            return timed(reader.load)

    with Checkpointer(saved[0], {"model": model, "optimizer": optimizer}, keep=Retention(last=1)) as checkpointer:
        stalls: list[float] = []

        def save() -> float:
            started = clock()
            checkpointer.save(next(number))
            stalls.append(clock() - started)
            checkpointer.wait()
            return clock() - started

        save(), dcp_save(), memcpy()
        stalls.clear()
        found = in_turns(repeats, memcpy=lambda: timed(memcpy), save=save, dcp_save=dcp_save)
        found["stall"] = statistics.median(stalls)
    return found | in_turns(
        repeats,
        load=lambda: load(model, optimizer),
        dcp_load=lambda: timed(lambda: dcp_load(model, optimizer)),
        reshard=lambda: load(other, other_optimizer),
        dcp_reshard=lambda: timed(lambda: dcp_load(other, other_optimizer)),
        whole=lambda: load(whole, whole_optimizer),
        dcp_whole=lambda: timed(lambda: dcp_load(whole, whole_optimizer)),
    )


def on_each_rank(repeats: int, directory: Path, megabytes: int, contestant: str | None) -> None:
    torch.set_num_threads(1)
    smddp.join()
    if contestant is not None:
        memory(contestant, directory / "small", 0)  # imports, and what a first step allocates
        most = torch.tensor(memory(contestant, directory, megabytes))
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            copy = megabytes / dist.get_world_size() * (contestant == "trainer")
            besides = f", and {copy:.0f} for saves" if copy else ""
            print(f"memory    {contestant}: {float(most) - copy:.0f} MB at most{besides}")
        smddp.leave()
        return
    step, save = steps(repeats, directory), saves(repeats, directory, megabytes)
    if dist.get_rank() == 0:
        print(f"step      {step['trainer'] / step['hand']:.3f} x by hand ({step['hand'] / 20 * 1e3:.1f} ms)")
        print(f"stall     {save['stall'] / save['memcpy']:.2f} x memcpy ({save['memcpy'] * 1e3:.0f} ms)")
        lines = {"save": "save, durable", "load": "load", "reshard": "load, divided otherwise", "whole": "load, whole"}
        for name, text in lines.items():
            print(
                f"{text}: {save[name]:.3f} s, DCP {save['dcp_' + name]:.3f} s, {save[name] / save['dcp_' + name]:.2f} x"
            )
    smddp.leave()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=200, help="of model and moments, of all ranks together")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--memory", choices=("hand", "trainer"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.directory is not None:
        on_each_rank(given.repeats, given.directory, given.megabytes, given.memory)
        return
    with tempfile.TemporaryDirectory(prefix="sharded-benchmark-") as directory:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.ranks}"]
        command += [__file__, *sys.argv[1:], f"--directory={directory}"]
        # Else what a process has freed counts as its memory, too: its allocator keeps it.
        returns_memory = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}
        for contestant in ("hand", "trainer"):
            subprocess.run([*command, f"--memory={contestant}"], env=returns_memory, check=True)
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
