"""Trains on two ranks with an accelerator, with a fault in rank 1 before its sixth step: `test_two_ranks` starts it."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import get_args

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

import smddp
from smddp.distributed.collectives import sum_over_ranks
from smddp.distributed.ddp_options import CommHookName

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--fault", default="")
parser.add_argument("--watch", type=float, default=0)
parser.add_argument("--own-group", action="store_true", help="make the process group here, for the device alone")
parser.add_argument("--zero", action="store_true", help="divide the optimizer's state among the ranks")
parser.add_argument("--sharded", action="store_true", help="divide the model among the ranks")
parser.add_argument("--comm-hook", choices=get_args(CommHookName), help="how gradients are sent")
options = parser.parse_args()


def strike(trainer: smddp.Trainer, rank: int) -> None:
    """Do what the option asks for."""
    if rank != 1 or trainer.steps != 5:
        return
    if options.fault == "sleep":
        time.sleep(100)
    elif options.fault == "SIGSTOP":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif options.fault == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif options.fault == "exception":
        raise ValueError("injected")
    elif options.fault == "endless kernel":
        torch.cuda._sleep(200_000_000_000)  # a kernel that runs for 100 s


def carried() -> int:
    """Return the collectives that the late device's backend has carried; 0 on another device."""
    return int(torch.late.counts()["collectives"]) if hasattr(torch, "late") else 0


def main(job: smddp.Job) -> None:
    """Train two epochs; tell the weights."""
    smddp.seed_everything(0)
    norm = nn.LayerNorm if options.sharded else nn.BatchNorm1d
    with torch.device("meta" if options.sharded else "cpu"):
        model = nn.Sequential(nn.Linear(64, 256), norm(256), nn.ReLU(), nn.Linear(256, 10))
    weights = list(model.parameters())
    zero = ZeroRedundancyOptimizer(weights, torch.optim.AdamW) if options.zero else None
    trainer = smddp.Trainer(
        job,
        model,
        zero or torch.optim.AdamW(weights),
        precision="bf16",
        parallel=smddp.Sharded(wrap=(nn.Linear,)) if options.sharded else smddp.DDPOptions(comm_hook=options.comm_hook),
        checkpoints=smddp.CheckpointPolicy(every=4),
        log_every=1,
    )
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(640, 64, generator=generator), torch.randint(10, (640,), generator=generator))
    loader = trainer.loader(data, 64)
    rank = dist.get_rank()
    for _ in trainer.epochs(2):
        for inputs, labels in trainer.batches(loader):
            strike(trainer, rank)
            if options.fault == "other collective" and trainer.steps == 5:
                if rank == 1:
                    dist.barrier()
                else:
                    dist.all_reduce(torch.ones(5, device=trainer.device))
            trainer.step(nn.functional.cross_entropy(trainer.model(inputs), labels))
    digest = hashlib.sha256()
    for weight in trainer.module.state_dict().values():
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
        digest.update(whole.cpu().numpy().tobytes())
    devices = [None, None]
    dist.all_gather_object(devices, str(torch.empty(0, device=trainer.device.type).device))  # of no given index
    batch = torch.zeros(2, 64)  # of the CPU: DDP moves it
    assert trainer.model(batch).device == trainer.device
    with torch.no_grad():
        assert trainer.model(batch).device == trainer.device
    of_cpu = sum_over_ranks(torch.tensor(rank + 1.0), trainer._membership)
    assert of_cpu.is_cpu
    before = carried()
    gathered = [trainer.gather(torch.tensor([rank], device=each)) for each in ("cpu", trainer.device)]
    assert [each.device.type for each in gathered] == ["cpu", trainer.device.type]
    by_device = carried() - before
    own = torch.tensor(rank + 1.0, device=trainer.device)
    total = trainer.sum(own)
    assert (own.item(), own.device) == (rank + 1, total.device)
    found = {
        "weights": digest.hexdigest(),
        "steps": trainer.steps,
        "backend": dist.get_backend_config(),
        "devices": devices,
        "races": torch.late.races() if hasattr(torch, "late") else [],
        "sum": total.item(),
        "of CPU": of_cpu.item(),
        "gathered by the device": by_device,
        "gathered": [str(each.tolist()) for each in gathered],
    }
    Path(os.environ["SMDDP_RUN_DIR"], f"result-{rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    if options.own_group:
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("lccl")
    smddp.run(main, watch=smddp.Watch(after=options.watch, patience=0) if options.watch else False)
