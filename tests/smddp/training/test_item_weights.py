"""Losses that are means over unequal numbers of items: the step is that of the mean over all items of all ranks."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import smddp
from smddp.job import Job

PROGRAM = """
import json, os
import torch
from torch import nn
import smddp

def main(job: smddp.Job) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = smddp.Trainer(job, model, optimizer, accumulate=2, clip_norm=0.5, log_every=1, precision={precision!r})
    rank, ranks = job.cluster.rank, job.cluster.world_size
    generator = torch.Generator().manual_seed(7)
    for step in range(4):
        for micro in range(2):
            for other in range(ranks):
                count = int(torch.randint(0 if step else 1, 9, (), generator=generator))
                inputs = torch.randn(count, 3, generator=generator)
                if other == rank:
                    own = inputs
            loss = trainer.model(own).square().sum() / max(len(own), 1)
            trainer.step(loss, weight=len(own))
    with open(os.environ["OUT"] + str(rank), "w") as file:
        json.dump([value for weight in model.parameters() for value in weight.flatten().tolist()], file)

smddp.run(main)
"""


def by_hand(ranks: int) -> tuple[torch.Tensor, list[float]]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(7)
    losses = []
    for step in range(4):
        items = []
        for _ in range(2 * ranks):
            count = int(torch.randint(0 if step else 1, 9, (), generator=generator))
            items.append(torch.randn(count, 3, generator=generator))
        loss = model(torch.cat(items)).square().mean()
        loss.backward()
        losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()]), losses


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_step_is_that_of_the_mean_over_all_items(ranks, run_ranks, tmp_path):
    place = {"OUT": str(tmp_path / "weights"), "SMDDP_RUN_DIR": str(tmp_path / "run"), "WORLD_SIZE": str(ranks)}
    ends = run_ranks(PROGRAM.format(precision="fp32"), [{**place, "LOCAL_WORLD_SIZE": str(ranks)}] * ranks)
    assert [end.code for end in ends] == [0] * ranks, ends[0].logged
    expected, losses = by_hand(ranks)
    for rank in range(ranks):
        weights = torch.tensor(json.loads((tmp_path / f"weights{rank}").read_text()))
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    shown = [line.split("loss=")[1].split()[0] for line in ends[0].logged.splitlines() if " loss=" in line]
    assert [float(loss) for loss in shown] == pytest.approx(losses, rel=1e-3)


@pytest.fixture
def trainer(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)})
    yield smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), accumulate=2)
    smddp.leave()


def loss_of(trainer: smddp.Trainer) -> torch.Tensor:
    return trainer.model(torch.ones(2, 3)).square().mean()


def test_a_step_of_which_only_some_micro_batches_have_a_weight_is_refused(trainer):
    trainer.step(loss_of(trainer), weight=3)
    with pytest.raises(ValueError, match="1 of the 2 micro-batches of this optimizer step had a weight"):
        trainer.step(loss_of(trainer))


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
def test_a_weight_that_is_no_number_of_items_is_refused(trainer, weight):
    with pytest.raises(ValueError, match="0 or more"):
        trainer.step(loss_of(trainer), weight=weight)


def test_a_weight_of_several_numbers_is_refused(trainer):
    with pytest.raises(ValueError, match=r"weight has shape \[2\]"):
        trainer.step(loss_of(trainer), weight=torch.ones(2))


def test_equal_weights_take_the_step_of_none(trainer):
    def step(**weight):
        with torch.no_grad():
            for parameter in trainer.module.parameters():
                parameter.fill_(0.3)
        for _ in range(2):
            trainer.step(loss_of(trainer), **weight)
        return [parameter.detach().clone() for parameter in trainer.module.parameters()]

    for weighed, plain in zip(step(weight=torch.tensor(4)), step(), strict=True):
        assert torch.equal(weighed, plain)


def test_a_step_without_an_item_changes_nothing(trainer):
    before = [parameter.detach().clone() for parameter in trainer.module.parameters()]
    for _ in range(2):
        trainer.step(loss_of(trainer), weight=0)
    assert all(torch.equal(*pair) for pair in zip(before, trainer.module.parameters(), strict=True))


def test_a_resume_keeps_the_unit_that_the_loss_scale_was_found_with(tmp_path):
    def train(run: str, steps: int) -> tuple[float, list[float]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / run)})
        trainer = smddp.Trainer(job, model, optimizer, precision="fp16")
        for step in trainer.steps_to(steps):
            items = 400 if step else 2
            inputs = torch.randn(items, 4, generator=torch.Generator().manual_seed(step))
            trainer.step((trainer.model(inputs)[:, 0] - inputs.sum(1)).square().mean(), weight=items)
        trainer.save_model()
        smddp.leave()
        return trainer._trained.scaler.get_scale(), model[0].weight.flatten().tolist()

    whole = train("whole", 12)
    train("cut", 6)
    assert train("cut", 12) == whole
