"""Small trainings in which one bit flips, or none: ``smddp run flipping_job.py`` with their plans in FLIPPING_JOB.

It is the training script of `tests.torture.flips`. The bit flips while the script works, between an optimizer step and
the save that may follow it. Each rank writes a line of JSON for each training.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import smddp
from smddp.checkpoint import list_checkpoints
from smddp.distributed import replica_check
from smddp.errors import SmddpError

_GLOBAL_BATCH = 32


class Network(nn.Module):
    """Layers of several kinds, of which one is frozen, and buffers that no step writes."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.last = nn.Linear(16, 1)
        self.scale: Tensor
        self.register_buffer("scale", torch.rand(16) + 0.5)
        self.register_buffer("table", torch.arange(32))
        self.register_buffer("mask", torch.rand(16, dtype=torch.float64) < 0.5)

    def forward(self, numbers: Tensor) -> Tensor:
        """Return a number for each of ``numbers``, which are from 0 to 15."""
        return self.last(self.frozen(torch.tanh(self.norm(self.first(self.embedding(numbers))) * self.scale)))  # type: ignore[no-any-return]


def tensors(network: nn.Module) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def train(job: smddp.Job, plan: dict[str, Any]) -> dict[str, Any]:
    """Train for ``plan["steps"]`` steps, and return what this rank was told."""
    torch.manual_seed(plan["seed"])
    network = Network()
    trainer = smddp.Trainer(
        job,
        network,
        torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9),
        ema=plan.get("ema"),
        accumulate=plan.get("accumulate", 1),
        on_nonfinite="raise",
        check_replicas=plan["every"],
        checkpoints=smddp.CheckpointPolicy(every=plan["saves"], seconds=None),
        progress=False,
    )
    generator = torch.Generator().manual_seed(plan["seed"])
    numbers = torch.randint(16, (plan["steps"] * _GLOBAL_BATCH,), generator=generator)
    loader = trainer.loader(TensorDataset(numbers), batch_size=_GLOBAL_BATCH)
    warnings = _Warnings()
    logger = logging.getLogger(replica_check.__name__)
    logger.addHandler(warnings)
    error = ""
    try:
        for _ in trainer.epochs(1):
            for (batch,) in trainer.batches(loader):
                is_done = trainer.step((trainer.model(batch) - batch.sin()[:, None]).square().mean())
                if is_done and trainer.steps == plan["step"] and job.cluster.rank == plan["rank"]:
                    content = tensors(network)[plan["name"]].detach().reshape(-1).view(torch.uint8)
                    content[plan["byte"]] ^= 1 << plan["bit"]
                if is_done and not plan["name"] and trainer.steps % 7 == 0:
                    with torch.no_grad():  # in training mode: statistics differ, or change on some ranks only
                        for _ in range((trainer.steps + job.cluster.rank) % 3):
                            network(batch)
    except SmddpError as raised:
        error = f"{type(raised).__name__}: {raised}"
    finally:
        logger.removeHandler(warnings)
    trainer._run.finish()
    contents = [each.detach().reshape(-1).view(torch.uint8) for each in network.parameters()]
    of_ranks = trainer.gather(torch.cat(contents)[None])
    return {
        "error": error,
        "warnings": warnings.texts,
        "steps": trainer.steps,
        "are_equal": bool((of_ranks == of_ranks[0]).all()),
        "saved": sorted(each.step for each in list_checkpoints(str(job.checkpoint_dir))),
    }


def main(job: smddp.Job) -> None:
    plans = json.loads(Path(os.environ["FLIPPING_JOB"]).read_text())
    with Path(f"told-{job.cluster.rank}").open("w") as file:
        for number, plan in enumerate(plans):
            own = dataclasses.replace(job, checkpoint_dir=job.checkpoint_dir / str(number))
            print(json.dumps(train(own, plan)), file=file, flush=True)


if __name__ == "__main__":
    smddp.run(main)
