"""An evaluation with other weights than are trained, such as an average: a stop in it saves those that are trained."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from smddp import Trainer
from smddp.checkpoint import list_checkpoints
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.job import Job
from smddp.process.preemption import Stopped, stop_signal
from smddp.training.active_runs import active_runs

Exchange = Callable[[nn.Module, Sequence[Tensor]], object]


def by_state_dict(model: nn.Module, values: Sequence[Tensor]) -> None:
    model.load_state_dict(dict(zip(model.state_dict(), values, strict=True)))


def by_data(model: nn.Module, values: Sequence[Tensor]) -> None:
    for weight, value in zip(model.parameters(), values, strict=True):
        weight.data.copy_(value)


def by_another_tensor(model: nn.Module, values: Sequence[Tensor]) -> None:
    for weight, value in zip(model.parameters(), values, strict=True):
        weight.data = value.clone()


def train(
    job: Job,
    exchange: Exchange,
    *,
    stop_in: int | None = None,
    leaves_by_break: bool = False,
    saves: bool = False,
    waits: bool = False,
) -> tuple[list[Tensor], Stopped | None]:
    """Trains two epochs, each with an evaluation of other weights, and returns the trained ones and a stop."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    data = TensorDataset(torch.randn(24, 2))
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader, held_out = trainer.loader(data, batch_size=4), trainer.evaluation_loader(data, 4)
    stop = None
    try:
        for epoch in trainer.epochs(2):
            for number, (batch,) in enumerate(trainer.batches(loader)):
                trainer.step(trainer.model(batch).square().mean())
                if leaves_by_break and number == 3:
                    break
            if saves:
                trainer.save(wait=waits)
            own = [weight.detach().clone() for weight in model.parameters()]
            exchange(model, [torch.full_like(weight, 9.0) for weight in own])
            stop_signal.requested = epoch == stop_in
            with torch.no_grad():
                total = sum(float(trainer.model(batch).sum()) for (batch,) in trainer.batches(held_out))
            trainer.sum(total)
            exchange(model, own)
    except Stopped as stopped:
        stop = stopped
    stop_signal.requested = False
    return [weight.detach().clone() for weight in model.parameters()], stop


@pytest.mark.parametrize("leaves_by_break", [False, True])
@pytest.mark.parametrize("exchange", [by_state_dict, by_data, by_another_tensor])
def test_a_stop_waits_for_the_weights_that_are_trained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, exchange: Exchange, leaves_by_break: bool
) -> None:
    undisturbed, _ = train(
        Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), exchange, leaves_by_break=leaves_by_break
    )
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    _, stop = train(job, exchange, stop_in=0, leaves_by_break=leaves_by_break)
    assert stop is not None
    assert [
        message
        for message in caplog.messages
        if message.startswith("the stop is postponed: the model's weights are not those of step")
    ]
    resumed, stop = train(job, exchange, leaves_by_break=leaves_by_break)
    assert stop is None
    assert all(map(torch.equal, resumed, undisturbed))


def test_a_stop_waits_for_nothing_once_the_trained_weights_are_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed, _ = train(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), by_state_dict)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    weights, stop = train(job, by_state_dict, stop_in=0, saves=True, waits=True)
    assert stop is not None
    assert not [message for message in caplog.messages if "postponed" in message]
    assert all((weight == 9.0).all() for weight in weights), "the stop was heeded after the evaluation"
    assert [found.step for found in list_checkpoints(job.checkpoint_dir)] == [6]
    resumed, _ = train(job, by_state_dict)
    assert all(map(torch.equal, resumed, undisturbed))


@pytest.mark.parametrize("ends_before_the_exchange", [True, False])
def test_a_stop_waits_for_the_trained_weights_whose_save_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ends_before_the_exchange: bool
) -> None:
    """Else the checkpoint that repeats the failed one would have the exchanged weights."""
    undisturbed, _ = train(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), by_state_dict)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    commit, restored = DirectoryStore.commit, threading.Event()

    def fail_first(store: DirectoryStore, step: int, directory: str, *rest: object, **options: object) -> None:
        if directory.endswith("-0001"):
            assert ends_before_the_exchange or restored.wait(30)
            raise OSError(5, "I/O error")
        commit(store, step, directory, *rest, **options)  # type: ignore[arg-type]

    def exchange(model: nn.Module, values: Sequence[Tensor]) -> None:
        while ends_before_the_exchange and active_runs.open_runs()[0].checkpointer.busy:
            time.sleep(0.001)
        by_state_dict(model, values)
        threading.Timer(0.2, restored.set).start()

    monkeypatch.setattr(DirectoryStore, "commit", fail_first)
    _, stop = train(job, exchange, stop_in=0, saves=True)
    assert stop is not None
    assert "the stop is postponed: the model's weights are not those of step 6" in caplog.text
    resumed, _ = train(job, by_state_dict)
    assert all(map(torch.equal, resumed, undisturbed))


def test_a_stop_in_an_evaluation_of_the_trained_weights_does_not_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    _, stop = train(job, lambda _model, _values: None, stop_in=0)
    assert stop is not None
    assert not [message for message in caplog.messages if "postponed" in message]
