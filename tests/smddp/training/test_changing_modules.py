"""Modules that change while they train: buffers that a forward pass assigns, layers that are added or replaced."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from smddp import Trainer
from smddp.distributed import leave
from smddp.errors import CheckpointError
from smddp.job import Job
from smddp.training.ema import ExponentialMovingAverage

# Each model is trained twice on the same batches: by a Trainer, and by the loop that one would write with torch's DDP,
# which is made anew after each change of the layers.
PROGRAM = """
import copy, os
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import smddp

class Assigns(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("late", None)

    def forward(self, x):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
            self.late = x.detach().amax(0) if self.late is None else 0.5 * self.late + 0.5 * x.detach().amax(0)
        return self.layer(torch.tanh(x - self.mean) + 0.1 * self.late)

class Grows(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(x)))

def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(4, 3, generator=generator) for _ in range(6)]

def change(model, optimizer, step, rank):
    if not isinstance(model, Grows) or step not in (2, 4):
        return False
    torch.manual_seed(100 * step + rank)  # ranks that drew other numbers make other layers
    model.head = nn.Sequential(model.head, nn.Linear(1, 1)) if step == 2 else nn.Linear(3, 1)
    added = model.head[1] if step == 2 else model.head
    optimizer.add_param_group({"params": list(added.parameters())})
    return True

def by_hand(model, rank):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    replica = DDP(model)
    for step, batch in enumerate(batches(rank)):
        if change(model, optimizer, step, rank):
            replica = DDP(model)
        replica(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for buffer in model.buffers():
        torch.distributed.broadcast(buffer, src=0)
    return model

def by_trainer(model, rank, job):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    trainer = smddp.Trainer(job, model, optimizer, name=type(model).__name__, ema=0.5)
    for step, batch in enumerate(batches(rank)):
        if change(model, optimizer, step, rank) and step == 4:
            trainer.save(wait=True)  # before a forward pass has met the layer
            at = torch.cat([weight.flatten() for weight in model.head.parameters()])
            assert (trainer.gather(at[None]) == at).all(), "ranks save other weights"
        trainer.step(trainer.model(batch).square().mean())
    assert trainer.ema.state_dict().keys() == model.state_dict().keys()
    return model

def main(job):
    rank = job.cluster.rank
    for kind in (Assigns, Grows):
        torch.manual_seed(0)
        model = kind()
        hand, ours = by_hand(copy.deepcopy(model), rank), by_trainer(model, rank, job)
        assert hand.state_dict().keys() == ours.state_dict().keys()
        for name, value in hand.state_dict().items():
            assert torch.equal(value, ours.state_dict()[name]), (kind, name, value, ours.state_dict()[name])
    print("equal")

if __name__ == "__main__":
    smddp.run(main)
"""


def test_two_ranks_train_what_torchs_ddp_does_while_buffers_and_layers_change(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    ranks = run_ranks(PROGRAM, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [(rank.code, rank.printed) for rank in ranks] == [(0, "equal\n")] * 2, ranks


STRANGER = """
import torch
from torch import nn
import smddp

def main(job):
    model, head = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    trainer = smddp.Trainer(job, model, optimizer)
    for step in range(3):
        if step == 1:
            optimizer.add_param_group({"params": list(head.parameters())})
        trainer.step(head(trainer.model(torch.ones(2, 3))).mean())

if __name__ == "__main__":
    smddp.run(main)
"""


def test_parameters_that_the_ranks_would_train_apart_are_refused_when_they_are_added(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    ranks = run_ranks(STRANGER, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [rank.code for rank in ranks] == [1, 1], ranks
    failure = (tmp_path / "run" / "output" / "failure").read_text()
    assert "2 of 2 new parameters that are not the model's: checkpoints would leave them out, and several" in failure


class Assigns(nn.Module):
    def __init__(self, first: float | None) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("seen", None if first is None else torch.full((2,), first))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x[:2, 0].detach() * 1.0
        return self.layer(x).mean()  # type: ignore[no-any-return]


def test_an_average_takes_layers_in_that_were_added_and_forgets_those_that_were_replaced() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    average = ExponentialMovingAverage(model, 0.5)
    shown = average.module
    average.update_parameters(model)
    before = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(1.0)
    model[1], model[2] = nn.Tanh(), nn.Linear(2, 2)
    model.append(nn.Linear(2, 1))
    average.update_parameters(model)
    assert average.module is shown
    assert torch.allclose(shown[0].weight, before + 0.5)
    assert isinstance(shown[1], nn.Tanh)
    assert torch.equal(shown[2].weight, model[2].weight)
    assert torch.equal(shown[3].weight, model[3].weight)
    assert not any(weight.requires_grad for weight in average.parameters())
    assert not shown[3].training


def test_an_average_takes_a_buffer_in_that_was_none_even_one_with_a_graph() -> None:
    model = Assigns(first=None)
    average = ExponentialMovingAverage(model, 0.5)
    average.update_parameters(model)
    model.seen = torch.ones(2) * model.layer.weight.sum()
    average.update_parameters(model)
    assert torch.equal(average.module.seen, model.seen)
    model.seen = model.seen.detach() + 2.0
    average.update_parameters(model)
    assert torch.allclose(average.module.seen, model.seen - 1.0)


@pytest.mark.parametrize("first", [None, 5.0])
def test_a_skipped_step_puts_buffers_back_that_its_forward_pass_assigned(job: Job, first: float | None) -> None:
    model = Assigns(first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(job, model, optimizer, on_nonfinite="skip", precision="fp32")
    trainer.step(trainer.model(torch.full((3, 1), float("nan"))))
    assert (model.seen is None) if first is None else torch.equal(model.seen, torch.full((2,), first))
    trainer.step(trainer.model(torch.ones(3, 1)))
    trainer.step(trainer.model(torch.full((3, 1), float("inf"))))
    assert torch.equal(model.seen, torch.ones(2))


def test_half_weights_keep_what_a_forward_pass_assigns_and_see_norm_layers_that_were_added(job: Job) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(2, 2), nn.Identity()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = x[:, 0].detach() * 1.0  # of another shape than before
            return self.norm(self.layer(x))  # type: ignore[no-any-return]

    model = Model()
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), precision="O2")
    trainer.step(trainer.model(torch.ones(3, 2)).float().mean())
    assert torch.equal(model.seen, torch.ones(3))
    assert model.seen.dtype == torch.float32
    model.norm, given = nn.LayerNorm(2), []
    model.norm.register_forward_hook(lambda _norm, inputs, _outputs: given.append(inputs[0].dtype))
    trainer.step(trainer.model(torch.ones(3, 2)).float().mean())
    assert given == [torch.float32]


def test_an_average_that_is_evaluated_between_updates_goes_on_though_its_forward_pass_assigns_buffers() -> None:
    model = Assigns(first=1.0)
    average = ExponentialMovingAverage(model, 0.5)
    average.update_parameters(model)
    average(torch.full((2, 1), 5.0))
    model.seen = torch.full((2,), 3.0)
    average.update_parameters(model)
    assert torch.equal(average.module.seen, torch.full((2,), 4.0))


CASTS = """
import torch
from torch import nn
import smddp

def main(job):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32")
    generator = torch.Generator().manual_seed(job.cluster.rank)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        model.to(dtype)
        for _ in range(2):
            trainer.step(trainer.model(torch.randn(4, 3, generator=generator).to(dtype)).square().mean())
        weights = torch.cat([weight.detach().flatten().double() for weight in model.parameters()])
        assert (trainer.gather(weights[None]) == weights).all(), dtype
    print("equal")

if __name__ == "__main__":
    smddp.run(main)
"""


def test_ranks_stay_equal_when_the_model_is_cast_while_it_trains(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    ranks = run_ranks(CASTS, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [(rank.code, rank.printed) for rank in ranks] == [(0, "equal\n")] * 2, ranks


def test_an_average_of_weights_that_are_cast_is_followed_or_refused() -> None:
    model = nn.Linear(2, 1)
    average = ExponentialMovingAverage(model, 0.5)
    average.update_parameters(model)
    before = model.weight.detach().clone()
    with torch.no_grad():
        model.double().weight.add_(1.0)
    average.update_parameters(model)
    assert average.module.weight.dtype == torch.float64
    assert torch.allclose(average.module.weight, before.double() + 0.5)
    with pytest.raises(ValueError, match="an update would round to nothing"):
        average.update_parameters(model.bfloat16())


def test_a_buffer_that_was_none_is_resumed(job: Job) -> None:
    model = Assigns(first=None)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.step(trainer.model(torch.ones(3, 1)))
    trainer.save(wait=True)
    del trainer
    leave()
    again = Assigns(first=None)
    assert Trainer(job, again, torch.optim.SGD(again.parameters(), lr=0.1)).resume()
    assert torch.equal(again.seen, torch.ones(2))


def test_a_buffer_that_grows_is_told_at_the_first_save_for_a_resume_can_t_load_it(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)
            self.register_buffer("memory", torch.zeros(0, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.memory = torch.cat([self.memory, x.detach()])
            return self.layer(x).mean()  # type: ignore[no-any-return]

    def trainer_of_anew() -> Trainer:
        model = Remembers()
        return Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))

    trainer = trainer_of_anew()
    trainer.save(wait=True)
    assert "changed the shape" not in caplog.text
    for _ in range(2):
        trainer.step(trainer.model(torch.ones(3, 1)))
        trainer.save(wait=True)
    assert caplog.text.count("the model has changed the shape of memory from [0, 1] to [3, 1].") == 1
    del trainer
    with pytest.raises(CheckpointError, match="memory"):
        trainer_of_anew().resume()


def test_lazy_layers_have_no_shape_to_compare_before_their_first_forward_pass(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    model = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.step(trainer.model(torch.ones(3, 4)).mean())
    trainer.save(wait=True)
    assert "changed the shape" not in caplog.text
