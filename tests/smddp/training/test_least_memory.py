"""The memory that an optimizer step needs: a trial logs it, and a rehearsal compares it with a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import nn

import smddp
from estimators.rehearsal.rehearsal import _LEAST_MEMORY, _least_bytes
from smddp.training.least_memory import LeastMemory


@pytest.fixture(autouse=True)
def _no_other_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeastMemory, "_stepped", WeakSet())  # Trainers of earlier tests may not be deleted yet


PROGRAM = """
import gc, torch, smddp
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer


class Block(nn.Linear):
    pass


def train(job, name, zero=False, **options):
    torch.manual_seed(0)
    model = nn.Sequential(Block(512, 256), Block(256, 512))
    model[0].bias.requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    adam = torch.optim.AdamW
    optimizer = ZeroRedundancyOptimizer(trained, adam) if zero else adam(trained)
    trainer = smddp.Trainer(job, model, optimizer, name=name, **options)
    for _ in trainer.steps_to(2):
        trainer.step(trainer.model(torch.ones(2, 512)).sum())
    return trainer


def main(job):
    train(job, "buckets", ema=0.9)
    gc.collect()
    train(job, "views", parallel=smddp.DDPOptions(gradient_as_bucket_view=True))
    gc.collect()
    train(job, "shards", ema=0.9, parallel=smddp.Sharded(wrap=(Block,)))
    gc.collect()
    if job.cluster.world_size > 1:
        train(job, "zero", zero=True)
        gc.collect()
    kept = train(job, "one-of-two")
    train(job, "two-of-two")


smddp.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_each_trainer_logs_once_what_rank_0_needs(
    run_ranks: Callable[..., list[Any]], tmp_path: Path, ranks: int
) -> None:
    trial = {"SMDDP_RUN_DIR": str(tmp_path / "run"), "SMDDP_MAX_STEPS": "2"}
    ended = run_ranks(PROGRAM, [trial] * ranks)
    assert [rank.code for rank in ended] == [0] * ranks, ended
    assert not any(_LEAST_MEMORY.search(line) for rank in ended[1:] for line in rank.logged.splitlines())
    found = [match for line in ended[0].logged.splitlines() if (match := _LEAST_MEMORY.search(line))]
    assert {int(match[1]) for match in found} == {ranks}
    needed = [(_least_bytes(match) / 2**20, bool(match[4])) for match in found]
    # Two weights of half a MiB, their gradients, two moments, and the average.
    if ranks == 1:
        assert needed == [(5.0, False), (4.0, False), (5.0, True), (4.0, False), (7.0, False)]
    else:
        # ZeRO gives each rank the moments of one weight. Of two Trainers, gradients do not exist at the same time.
        assert needed == [(5.0, False), (4.0, False), (2.5, True), (3.0, True), (4.0, False), (7.0, False)]


class Odd(nn.Module):
    """Weights whose size is not the number of their elements."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(1 << 12, 64, sparse=True)  # 1 MiB
        self.tied = self.table
        self.register_buffer("seen_often", torch.zeros(1).expand(1 << 20), persistent=False)
        self.register_buffer("in_csr", torch.eye(1 << 9).to_sparse_csr(), persistent=False)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        return self.table(index).sum() + self.tied(index).sum()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_shared_repeated_and_sparse_values_count_once(
    job: smddp.Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    object.__setattr__(job, "max_steps", 3)
    model = Odd()
    trainer = smddp.Trainer(job, model, torch.optim.SparseAdam(list(model.parameters())))
    with caplog.at_level("INFO"):
        for _ in trainer.steps_to(3):
            trainer.step(trainer.model(torch.tensor([1])))
    lines = [record.message for record in caplog.records if _LEAST_MEMORY.search(record.message)]
    assert lines == [
        "rank 0 of 1 needs at least 3.0 MiB of device memory beside activations: "
        "1.0 MiB of weights, 528 B of gradients, 2 MiB of optimizer state"
    ]


def test_a_step_that_the_guard_dropped_shows_nothing(job: smddp.Job, caplog: pytest.LogCaptureFixture) -> None:
    object.__setattr__(job, "max_steps", 2)
    model = nn.Linear(512, 512)
    trainer = smddp.Trainer(job, model, torch.optim.Adam(model.parameters()), on_nonfinite="skip")
    with caplog.at_level("INFO"):
        for step in trainer.steps_to(2):
            trainer.step(trainer.model(torch.ones(1, 512)).sum() * (float("nan") if step == 0 else 1.0))
            shown = [record.message for record in caplog.records if _LEAST_MEMORY.search(record.message)]
            assert len(shown) == step
    assert ": 1.0 MiB of weights, 1.0 MiB of gradients, 2.0 MiB of optimizer state" in shown[0]


def test_a_real_run_counts_nothing(job: smddp.Job, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Linear(2, 2)
    trainer = smddp.Trainer(job, model, torch.optim.Adam(model.parameters()))
    with caplog.at_level("INFO"):
        for _ in trainer.steps_to(1):
            trainer.step(trainer.model(torch.ones(1, 2)).sum())
    assert not any(_LEAST_MEMORY.search(record.message) for record in caplog.records)


class Duck:
    """What trains and is no torch.optim.Optimizer."""

    def __init__(self, weights: list[nn.Parameter]) -> None:
        self.param_groups = [{"params": weights, "lr": 0.1}]
        self.state: dict[nn.Parameter, Any] = {}

    def step(self) -> None:
        self.state["itself"] = self.state  # type: ignore[index]

    def zero_grad(self, *, set_to_none: bool) -> None:
        for weight in self.param_groups[0]["params"]:  # type: ignore[attr-defined]
            weight.grad = None if set_to_none else torch.zeros_like(weight)

    def state_dict(self) -> dict[str, Any]:
        return {"state": {}, "param_groups": [{"params": [0, 1], "lr": 0.1}]}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def test_what_can_not_be_counted_does_not_end_a_trial(job: smddp.Job, caplog: pytest.LogCaptureFixture) -> None:
    object.__setattr__(job, "max_steps", 2)
    model = nn.Linear(2, 2)
    trainer = smddp.Trainer(job, model, Duck(list(model.parameters())))  # type: ignore[arg-type]
    with caplog.at_level("DEBUG"):
        for _ in trainer.steps_to(2):
            trainer.step(trainer.model(torch.ones(1, 2)).sum())
    assert sum("could not be counted" in record.message for record in caplog.records) == 1
    assert not any(_LEAST_MEMORY.search(record.message) for record in caplog.records)


def test_a_trial_disturbs_no_hook_that_removes_itself(job: smddp.Job, caplog: pytest.LogCaptureFixture) -> None:
    object.__setattr__(job, "max_steps", 2)
    model = torch.compile(nn.Linear(2, 2), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hook = optimizer.register_step_post_hook(lambda *_: hook.remove())
    trainer = smddp.Trainer(job, model, optimizer)
    with caplog.at_level("INFO"):
        for _ in trainer.steps_to(2):
            trainer.step(trainer.model(torch.ones(1, 2)).sum())
    assert sum("compiled in " in record.message for record in caplog.records) == 1
    assert sum(bool(_LEAST_MEMORY.search(record.message)) for record in caplog.records) == 1


def test_a_trainer_that_never_stepped_is_forgotten(job: smddp.Job) -> None:
    object.__setattr__(job, "max_steps", 2)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    smddp.Trainer(job, model, optimizer, on_nonfinite="skip").resume()
    trainer = smddp.Trainer(job, model, optimizer)  # in the same location
    for _ in trainer.steps_to(1):
        trainer.step(trainer.model(torch.ones(1, 2)).sum())
