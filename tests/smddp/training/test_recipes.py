"""Several models, frozen and compiled ones, on one rank and on two: a resume in mid-run changes no bit."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from smddp import CheckpointPolicy, Profile, Trainer
from smddp.checkpoint import list_checkpoints
from smddp.distributed import leave
from smddp.errors import TrainingDivergedError
from smddp.job import Job
from smddp.process.preemption import Stopped, stop_signal
from tests.fork_python import ForkPython
from tests.ports import free_port
from tests.smddp.training import recipes

RECIPES = [recipe.__name__ for recipe in recipes.RECIPES]


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    yield Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    leave()
    stop_signal.requested = False
    gc.collect()


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_resume_changes_no_bit(tmp_path: Path, world_size: int, fork_python: ForkPython) -> None:
    port = free_port()
    size = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), "OMP_NUM_THREADS": "1"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SMDDP_RUN_DIR": str(tmp_path / "run")}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(Path(recipes.__file__)), *RECIPES],
            env={**os.environ, **size, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [rank.communicate(timeout=200) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, (printed, logged) in zip(ranks, outputs, strict=True):
        assert rank.returncode == 0, logged
        assert printed.split() == RECIPES
    assert outputs[0][1].count("compiled in ") == 3  # once a trainer, and only for the one recipe


class Pair:
    """A trainer, and one in its state that steps in its loop."""

    def __init__(self, job: Job) -> None:
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)
        self.inner = Trainer(job, self.first, torch.optim.AdamW(self.first.parameters(), lr=0.1), name="inner")
        outer_optimizer = torch.optim.AdamW(self.second.parameters(), lr=0.1)
        self.outer = Trainer(job, self.second, outer_optimizer, state={"inner": self.inner})

    def train(self, epochs: int, stop_at: int | None = None) -> Tensor:
        data = torch.utils.data.TensorDataset(torch.arange(40.0).unsqueeze(1) / 40)
        loader = self.outer.loader(data, batch_size=8)
        for _ in self.outer.epochs(epochs):
            for (batch,) in self.outer.batches(loader):
                self.outer.step((self.outer.model(batch) - 1).square().mean())
                stop_signal.requested = stop_at is not None and self.outer.steps >= stop_at
                self.inner.step((self.inner.model(batch) - 2).square().mean())
        return torch.cat(
            [weight.detach().flatten() for weight in (*self.first.parameters(), *self.second.parameters())]
        )


def test_a_stop_between_the_steps_of_two_trainers_saves_both_after_the_batch(job: Job) -> None:
    whole = Pair(job.part("whole")).train(epochs=3)
    leave()
    pair = Pair(job.part("parts"))
    with pytest.raises(Stopped):
        pair.train(epochs=3, stop_at=7)
    assert 7 <= pair.inner.steps == pair.outer.steps <= 10
    stop_signal.requested = False
    leave()
    resumed = Pair(job.part("parts"))
    assert torch.equal(resumed.train(epochs=3), whole)
    assert resumed.inner.steps == 15
    assert not list_checkpoints(job.part("parts").part("inner").checkpoint_dir)


def test_a_trainer_that_another_keeps_has_no_loop_of_its_own(job: Job) -> None:
    pair = Pair(job)
    loop_of_its_own = "call loader, resume, save, epochs, steps_to, batches and finish_if of that Trainer"
    actions = (pair.inner.resume, pair.inner.save, lambda: next(pair.inner.epochs(1)), lambda: pair.inner.loader([]))
    actions += (lambda: pair.inner.finish_if(True),)
    for action in actions:
        with pytest.raises(ValueError, match=loop_of_its_own):
            action()
    optimizer = torch.optim.SGD(pair.second.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="give it to one Trainer"):
        Trainer(job, pair.second, optimizer, name="third", state={"inner": pair.inner})
    pair.outer.resume()
    with pytest.raises(ValueError, match="before it resumes or trains"):
        Trainer(job, pair.second, optimizer, name="third", state={"outer": pair.outer})


def test_a_trainer_that_a_kept_one_keeps_is_saved_and_resumed_by_the_outer_one(job: Job) -> None:
    def make() -> tuple[list[nn.Linear], list[Trainer]]:
        torch.manual_seed(2)
        models, trainers = [nn.Linear(1, 1) for _ in range(3)], []
        for name, model in zip(["innermost", "inner", "outer"], models, strict=True):
            state = {"kept": trainers[-1]} if trainers else {}
            trainers.append(Trainer(job, model, torch.optim.AdamW(model.parameters(), lr=0.1), name=name, state=state))
        return models, trainers

    models, trainers = make()
    trainers[-1].resume()
    for _ in range(3):
        for trainer in trainers:
            trainer.step(trainer.model(torch.ones(1, 1)).sum())
    trainers[-1].save(wait=True)
    del trainer, trainers
    leave()
    gc.collect()
    resumed, again = make()
    assert again[-1].resume()
    assert [each.steps for each in again] == [3, 3, 3]
    for before, after in zip(models, resumed, strict=True):
        assert torch.equal(before.weight, after.weight)
    with pytest.raises(ValueError, match="call loader, resume"):
        again[0].resume()


@pytest.mark.parametrize("options", [{"timing": True}, {"profile": Profile(first=1, last=2)}])
def test_what_measures_a_loop_is_refused_in_a_trainer_that_has_none(job: Job, options: dict[str, Any]) -> None:
    model = nn.Linear(1, 1)
    kept = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), name="kept", **options)
    with pytest.raises(ValueError, match="give timing= and profile= to the other one"):
        Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), state={"kept": kept})


def test_a_policy_that_would_be_ignored_is_refused_and_on_change_is_not(job: Job) -> None:
    model = nn.Linear(1, 1)

    def keep(policy: CheckpointPolicy, name: str) -> None:
        kept = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), name="kept", checkpoints=policy)
        Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), name=name, state={"kept": kept})

    with pytest.raises(ValueError, match="give checkpoints= to that"):
        keep(CheckpointPolicy(every=5), "first")
    keep(CheckpointPolicy(on_change="take"), "second")


@pytest.mark.parametrize(("accumulate", "told"), [(2, 1), (3, 0)])
def test_micro_batches_of_a_kept_trainer_that_no_checkpoint_has_are_told_of(
    job: Job, caplog: pytest.LogCaptureFixture, accumulate: int, told: int
) -> None:
    kept_model, model = nn.Linear(1, 1), nn.Linear(1, 1)
    kept_optimizer = torch.optim.SGD(kept_model.parameters(), lr=0.1)
    kept = Trainer(job, kept_model, kept_optimizer, name="kept", accumulate=accumulate)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), state={"kept": kept})
    trainer.resume()
    for _ in range(3):
        kept.step(kept.model(torch.ones(1, 1)).sum())
    trainer.step(trainer.model(torch.ones(1, 1)).sum())
    trainer.save(wait=True)
    assert caplog.text.count("leaves out 1 micro-batches of the step that the Trainer 'kept' in state= has") == told


def test_a_kept_model_that_diverged_is_not_saved(job: Job) -> None:
    pair = Pair(job)
    nn.init.constant_(pair.first.weight, float("nan"))
    pair.outer.resume()
    with pytest.raises(TrainingDivergedError, match="weight"):
        pair.outer.save()
