"""A model that the script has put under tensor parallelism, below `fully_shard`, trains as on one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

PROGRAM = """
import os
os.chdir(DIRECTORY)
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader, DistributedSampler
import smddp
from smddp.metrics import RunningMean

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(float(os.environ.get("DROPOUT", 0)))
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs):
        return inputs + self.drop(self.outer(torch.tanh(self.inner(self.norm(inputs)))))

class Data(torch.utils.data.Dataset):
    def __init__(self, broken=None):
        self.values, self.seen = torch.randn(97, 5, generator=torch.Generator().manual_seed(3)), []
        if broken is not None:
            self.values[broken] = float("nan")

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        self.seen.append(index)
        return self.values[index]

def made(shape, names=("data", "tensor")):
    model = nn.Sequential(nn.Linear(5, 9), Block(9), Block(9), nn.Linear(9, 2))
    if shape:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        over = tuple(name for name in names if name != "tensor")
        for block in model[1:3]:
            parallelize_module(block, mesh["tensor"], {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
            fully_shard(block, mesh=mesh[over])
        fully_shard(model, mesh=mesh[over])
    return model

def error(trainer, batch):
    return (trainer.model(batch)[:, 0] - batch.sum(dim=1)).square()
"""

TRAINING = """
def model_ranks():
    shape, *_ = eval(os.environ["LAYOUT"])
    return shape[-1] if shape else 1

def main(job):
    torch.manual_seed(0)
    model = made(*eval(os.environ["LAYOUT"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    options = eval(os.environ.get("OPTIONS", "{}"))
    mean = RunningMean()
    trainer = smddp.Trainer(
        job, model, optimizer, accumulate=2, clip_norm=0.3, log_every=1, state={"mean": mean}, **options
    )
    data, tail = Data(8 if "on_nonfinite" in options else None), os.environ.get("TAIL", "drop")
    loader = trainer.loader(data, batch_size=24, tail=tail)
    test = trainer.evaluation_loader(Data(), batch_size=4)
    torch.manual_seed(int(os.environ.get("SEEDED_BY_RANK", 0)) * job.cluster.rank)
    batches, told = trainer.batches(loader), []
    for step in trainer.steps_to(int(os.environ["STEPS"])):
        batch = next(batches, None)
        if batch is None:
            batches = trainer.batches(loader)
            continue
        losses = error(trainer, batch)
        mean.add(losses.detach().mean(), count=losses.numel())
        if trainer.step(losses.mean(), weight=losses.numel()) and trainer.steps % 2 == 0:
            model.eval()
            with torch.no_grad():
                of_rank = [error(trainer, each) for each in trainer.batches(test)]
            model.train()
            every = trainer.gather(torch.cat(of_rank))
            assert len(every) == 97
            total = [float(trainer.sum(sum(float(each.sum()) for each in of_rank)))]
            total += [float(every.sum()), trainer.log(reduce="sum", error=float(sum(map(torch.sum, of_rank))))["error"]]
            assert max(total) - min(total) < 1e-3, total
            told.append(total[0])
            trainer.save()
    trainer.save_model()
    states, together = smddp.distributed.current_membership().ranks.gather(torch.get_rng_state), model_ranks()
    for rank, state in enumerate(states):
        alike = [other for other, each in enumerate(states) if torch.equal(each, state)]
        assert alike == list(range(rank - rank % together, rank - rank % together + together)), (rank, alike)
    count = mean.state_dict()["sum_and_count"][1] if mean.mean() else None
    assert count == 24 * trainer.steps or "TAIL" in os.environ, count
    seen = sorted(int(each) for each in trainer.gather(torch.tensor(data.seen)))
    if job.cluster.is_main:
        print(told, seen)

smddp.run(main)
"""


def program(directory: Path, rest: str) -> str:
    directory.mkdir(exist_ok=True)
    return PROGRAM.replace("DIRECTORY", repr(str(directory))) + rest


Told = tuple[list[float], list[int], dict[str, torch.Tensor]]


@pytest.fixture
def run(run_ranks: Callable[..., Any]) -> Callable[..., Told]:
    """Run a training as a chain of attempts, each with its layout and the step that it ends at."""

    def run(directory: Path, *chain: tuple[str, int], **environ: str) -> Told:
        errors: list[float] = []
        seen: list[int] = []
        for layout, steps in chain:
            ranks = int(torch.tensor(eval(layout)[0]).prod()) if eval(layout)[0] else 1
            given = {**environ, "LAYOUT": layout, "STEPS": str(steps)}
            ended = run_ranks(program(directory, TRAINING), [given] * ranks)
            assert [each.code for each in ended] == [0] * ranks, "\n".join(each.logged for each in ended)
            of_part = eval(ended[0].printed.replace("] [", "], ["))
            errors, seen = errors + of_part[0], seen + of_part[1]
        return errors, sorted(seen), torch.load(next(directory.rglob("model.pt")))

    return run


ONE = "None,"


@pytest.mark.slow
def test_it_resumes_in_mid_epoch_on_other_ranks_in_another_layout(run: Callable[..., Told], tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", (ONE, 10), SEEDED_BY_RANK="1")
    layouts = ["(2, 2),", "(1, 2),", "(2, 1),", "(1, 2, 2), ('replicate', 'shard', 'tensor')", ONE, "(2, 2),"]
    parts = run(tmp_path / "parts", *zip(layouts, (3, 4, 5, 6, 7, 10), strict=True), SEEDED_BY_RANK="1")
    assert parts[0] == pytest.approx(whole[0], rel=1e-4)
    assert parts[1] == whole[1], "each sample once, though several ranks compute on it"
    for name, weight in whole[2].items():
        torch.testing.assert_close(parts[2][name], weight, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_a_resume_in_the_same_layout_is_exact_though_the_script_seeds_by_rank(
    run: Callable[..., Told], tmp_path: Path
) -> None:
    given = {"DROPOUT": "0.3", "TAIL": "short", "SEEDED_BY_RANK": "1", "OPTIONS": "{'on_nonfinite': 'skip'}"}
    whole = run(tmp_path / "whole", ("(2, 2),", 8), **given)
    parts = run(tmp_path / "parts", ("(2, 2),", 3), ("(2, 2),", 8), **given)
    assert parts[:2] == whole[:2]
    assert all(torch.equal(parts[2][name], weight) for name, weight in whole[2].items())


REFUSALS = """
def refused(action):
    try:
        action()
    except ValueError as error:
        print(str(error).replace("\\n", " "))

def main(job):
    torch.manual_seed(0)

    def trainer(model, name, **options):
        return smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), name=name, **options)

    refused(lambda: trainer(made((1, 2)), "half", precision="fp16"))
    alone = made(None)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(alone[1], mesh["tensor"], {"inner": ColwiseParallel(), "outer": RowwiseParallel()})
    refused(lambda: trainer(alone, "alone"))
    repeated = fully_shard(made(None), mesh=mesh["data"])
    refused(lambda: trainer(repeated, "repeated"))
    refused(lambda: trainer(made((1, 2)), "hosts").loader(Data(), batch_size=8, sharded_by_host=True))
    own = trainer(made((1, 2)), "own")
    refused(lambda: next(own.batches(DataLoader(Data(), 4, sampler=DistributedSampler(Data())))))
    refused(lambda: trainer(made(None), "outer", state={"inner": trainer(made((1, 2)), "inner")}))
    outside = made(None)
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))
    parallelize_module(outside, mesh["tensor"], {"0": ColwiseParallel(use_local_output=False)})
    for layer in outside[1:]:
        fully_shard(layer, mesh=mesh["data"])
    refused(lambda: trainer(outside, "outside"))
    torch.manual_seed(job.cluster.rank)
    refused(lambda: trainer(made((1, 2)), "seeded"))
    torch.manual_seed(0)
    other = trainer(made((1, 2)), "other", log_every=1)
    batch = torch.full((4, 5), float(job.cluster.rank))
    refused(lambda: other.step(error(other, batch).mean()))

smddp.run(main)
"""


def test_what_would_go_wrong_in_silence_is_refused_by_name(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    ended = run_ranks(program(tmp_path, REFUSALS))
    assert [each.code for each in ended] == [0, 0], ended
    expected = [
        "precision='fp16' skips steps whose gradients overflow, and PyTorch lets ranks of a model under tensor",
        "1.inner.weight is a DTensor, and no module is sharded by fully_shard",
        "its weights are divided among 1 of 2 ranks",
        "data that is sharded by host gives each rank other samples, and tensor parallelism needs the same ones",
        "this DataLoader reads another share of the data than this rank computes on, by tensor parallelism",
        "by tensor parallelism, several ranks compute on the same batches for only one of two models",
        "0.weight is under tensor parallelism, and in no module that fully_shard was applied to",
        "ranks 0 and 1 have the same piece of 0.weight, with different values: make the model with the same seed",
        "by tensor parallelism, ranks 0 and 1 compute together on the same batches, and their losses are",
    ]
    for each in ended:
        lines = each.printed.splitlines()
        assert len(lines) == len(expected), lines
        assert all(text in line for text, line in zip(expected, lines, strict=True)), lines
