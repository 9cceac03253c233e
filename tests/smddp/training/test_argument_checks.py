"""What the Trainer refuses when it is made: no argument of another kind gets as far as the first step."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import SequentialLR, StepLR

import smddp
from smddp.checkpoint import Manifest
from smddp.metrics import CsvFile


@pytest.fixture
def job(tmp_path: Path) -> smddp.Job:
    return smddp.Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})


def make(job: smddp.Job, **options: Any) -> smddp.Trainer:
    model = options.pop("model", None) or nn.Linear(4, 4)
    optimizer = options.pop("optimizer", None) or (lambda weights: torch.optim.SGD(weights, lr=0.1))
    return smddp.Trainer(job, model, optimizer(model.parameters()), **options)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"accumulate": 1.5}, "accumulate=1.5: give a whole number of 1 or more"),
        ({"accumulate": None}, "accumulate=None: give a whole number of 1 or more"),
        ({"accumulate": True}, "accumulate=True: give a whole number of 1 or more"),
        ({"log_every": "50"}, "log_every='50': give a whole number of 1 or more"),
        ({"log_every": 0.5}, "log_every=0.5: give a whole number of 1 or more"),
        ({"clip_norm": "1"}, "clip_norm='1': give a number greater than 0, or None"),
        ({"clip_value": [1.0]}, "clip_value=[1.0]: give a number greater than 0, or None"),
        ({"clip_norm": True}, "clip_norm=True: give a number greater than 0, or None"),
        ({"ema": "0.9"}, "ema='0.9': give the decay, a number between 0 and 1, such as 0.999"),
        ({"ema": [0.9]}, "ema=[0.9]: give the decay, a number between 0 and 1, such as 0.999"),
    ],
)
def test_a_number_of_another_kind_is_refused(job: smddp.Job, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        make(job, **options)


def test_numbers_of_numpy_train_and_save_in_mid_epoch(job: smddp.Job) -> None:
    options = {"accumulate": np.int64(2), "log_every": np.int64(1), "seed": np.int64(1), "rewinds": np.int64(1)}
    trainer = make(job, **options)
    loader = trainer.loader(torch.randn(64, 4), batch_size=np.array([8, 16]).min())
    for _epoch in trainer.epochs(np.int64(1), max_steps=np.int64(3)):
        for batch in trainer.batches(loader):
            trainer.step(trainer.model(batch).square().mean())
            if trainer.steps == 2:
                trainer.save(wait=True)
    manifests = sorted(job.checkpoint_dir.glob("step-*/manifest.json"))
    assert [Manifest.from_json(path.read_bytes()).position for path in manifests] == [16, 24]


@pytest.mark.parametrize("size", [8.0, "8", True])
def test_a_batch_size_that_is_not_whole_is_refused(job: smddp.Job, size: Any) -> None:
    trainer = make(job)
    for make_loader in (trainer.loader, trainer.evaluation_loader):
        with pytest.raises(ValueError, match=rf"^batch_size is {size!r}: give a whole number$"):
            make_loader(torch.randn(64, 4), batch_size=size)


def test_a_loss_that_is_a_number_is_refused(job: smddp.Job) -> None:
    with pytest.raises(TypeError, match=r"trainer.step\(\) got 0\.5: give the loss as a tensor, without \.item\(\)"):
        make(job).step(0.5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"seed": None}, "seed is None: give a whole number"),
        ({"seed": "0"}, "seed is '0': give a whole number"),
        ({"state": "early"}, "state is 'early': give parts by their names"),
        ({"state": []}, "state is a list: give parts by their names"),
        ({"name": 3}, "name is 3: give a text"),
        ({"checkpoints": None}, "checkpoints is None: give smddp.CheckpointPolicy(...)"),
        ({"checkpoints": smddp.CheckpointPolicy}, "checkpoints is the class CheckpointPolicy: give smddp.Checkpoint"),
        ({"parallel": {}}, "parallel is a dict: give smddp.DDPOptions(...) or smddp.Sharded(...)"),
        ({"parallel": smddp.DDPOptions}, "parallel is the class DDPOptions: give smddp.DDPOptions(...)"),
        ({"profile": (10, 12)}, "profile is a tuple: give smddp.Profile(first=..., last=...)"),
        ({"trackers": None}, "trackers is None: give a list"),
        ({"trackers": CsvFile}, "trackers is the class CsvFile: give a list"),
        ({"timing": "no"}, "timing is 'no': give True or False"),
        ({"progress": None}, "progress is None: give True or False"),
        ({"move_model": 0}, "move_model is 0: give True or False"),
        ({"model": nn.ReLU}, "model is the class ReLU: give the module, made"),
    ],
)
def test_a_part_of_another_kind_is_refused(job: smddp.Job, options: dict[str, Any], told: str) -> None:
    model = options.pop("model", nn.Linear(4, 4))
    with pytest.raises(TypeError, match=re.escape(told)):
        smddp.Trainer(job, model, torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1), **options)


def test_a_job_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="job is 'runs/first': give what"):
        make("runs/first")  # type: ignore[arg-type]


@pytest.mark.parametrize("tracker", [CsvFile, print])
def test_a_tracker_that_was_not_made_is_refused(job: smddp.Job, tracker: Any) -> None:
    with pytest.raises(TypeError, match="which is no tracker"):
        make(job, trackers=[tracker])


@pytest.mark.parametrize("none", [None, []])
def test_a_training_without_an_optimizer_is_refused(job: smddp.Job, none: Any) -> None:
    with pytest.raises(ValueError, match="there is no optimizer"):
        make(job, optimizer=lambda weights: none)


@pytest.mark.parametrize("optimizer", ["sgd", torch.optim.SGD])
def test_what_is_no_optimizer_is_refused(job: smddp.Job, optimizer: Any) -> None:
    with pytest.raises(TypeError, match="make it first"):
        make(job, optimizer=lambda weights: optimizer)


def test_a_model_that_is_frozen_as_a_whole_is_refused(job: smddp.Job) -> None:
    with pytest.raises(ValueError, match="no parameter of the model requires a gradient"):
        make(job, model=nn.Linear(4, 4).requires_grad_(False))


@pytest.mark.parametrize("precision", ["fp16", "O2"])
def test_weights_in_half_are_refused_where_the_loss_is_scaled(job: smddp.Job, precision: Any) -> None:
    with pytest.raises(ValueError, match=r"precision='.*' scales the loss, .* float16: .* model.float\(\)"):
        make(job, model=nn.Linear(4, 4).half(), precision=precision)


@pytest.mark.parametrize("scheduler", ["cosine", StepLR])
def test_what_is_no_schedule_is_refused(job: smddp.Job, scheduler: Any) -> None:
    with pytest.raises(TypeError, match="make it first"):
        make(job, scheduler=scheduler)


def test_the_schedule_of_another_optimizer_is_refused(job: smddp.Job) -> None:
    other = torch.optim.SGD(nn.Linear(4, 4).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"the schedule \(StepLR\) is that of another optimizer"):
        make(job, scheduler=StepLR(other, step_size=1))


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer: StepLR(optimizer, 1),
        lambda optimizer: SequentialLR(optimizer, [StepLR(optimizer, 1), StepLR(optimizer, 2)], milestones=[2]),
        lambda optimizer: smddp.warmup_cosine(optimizer, 1, 4),
    ],
)
def test_a_schedule_of_the_optimizer_is_taken(job: smddp.Job, schedule: Callable[..., Any]) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    smddp.Trainer(job, model, optimizer, scheduler=schedule(optimizer))


def test_the_former_name_of_parallel_warns_and_excludes_the_new_one(job: smddp.Job) -> None:
    with pytest.warns(DeprecationWarning, match="named parallel= now"):
        make(job, ddp=smddp.DDPOptions())
    both = {"ddp": smddp.DDPOptions(), "parallel": smddp.DDPOptions(bucket_cap_mb=5)}
    with pytest.warns(DeprecationWarning), pytest.raises(ValueError, match="two names of one argument"):
        make(job, **both)


@pytest.mark.parametrize("move_model", [True, False])
def test_a_model_without_parameters_is_refused(job: smddp.Job, move_model: bool) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no parameter of the model requires a gradient"):
        smddp.Trainer(job, nn.ReLU(), optimizer, move_model=move_model)
