"""A training that ends before its count: by a condition, which a rerun recognises, or at a number of steps."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from smddp import EarlyStopping, PipeDataset, Trainer
from smddp.distributed import leave
from smddp.job import Input, Job


class Run:
    """Four steps an epoch of two samples each."""

    def __init__(self, job: Job, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.5)
        self.trainer = Trainer(
            job, self.model, self.optimizer, scheduler=scheduler, schedule_each="epoch", ema=0.9, **options
        )
        self.loader = self.trainer.loader(TensorDataset(torch.arange(8.0).unsqueeze(1) / 8), batch_size=2)
        self.seen: list[tuple[int, list[float]]] = []

    def step(self, batch: torch.Tensor) -> None:
        self.trainer.step((self.trainer.model(batch) - batch).square().mean())

    def train(self, epochs: int, *, finish_at: int | None = None, **options: Any) -> Run:
        for epoch in self.trainer.epochs(epochs, **options):
            for (batch,) in self.trainer.batches(self.loader):
                self.step(batch)
                self.seen.append((epoch, batch.flatten().tolist()))
                if self.trainer.steps == finish_at:
                    assert self.trainer.finish_if(True)
        return self

    def bits(self) -> list[float]:
        return [*torch.cat([weight.flatten() for weight in self.model.parameters()]).tolist(), self.lr]

    @property
    def lr(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 8])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_steps_end_it_in_mid_epoch_and_a_rerun_that_asks_for_more_goes_on(
    tmp_path: Path, steps: int, accumulate: int
) -> None:
    undisturbed = Run(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), accumulate=accumulate).train(3)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    first = Run(job, accumulate=accumulate).train(3, max_steps=steps)
    assert first.trainer.steps == steps
    seen = first.seen
    del first
    second = Run(job, accumulate=accumulate).train(3, max_steps=steps + 3)
    seen += second.seen
    assert second.trainer.steps == steps + 3
    del second
    third = Run(job, accumulate=accumulate).train(3)
    assert seen + third.seen == undisturbed.seen
    assert third.bits() == undisturbed.bits()


def test_a_rerun_that_asks_for_no_more_steps_has_nothing_to_train(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    Run(job).train(3, max_steps=5)
    again = Run(job).train(3, max_steps=5)
    assert again.seen == []
    assert "5 steps are in the checkpoint: nothing is left to train" in caplog.text


def test_no_epochs_train_nothing_and_say_so(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    assert Run(job).train(0).seen == []
    assert "epochs=0: nothing is trained" in caplog.text
    assert "are in the checkpoint" not in caplog.text


@pytest.mark.parametrize("count", [-1, 2.5, 2.0, "2", None, True])
def test_a_number_of_epochs_that_is_none_is_refused(job: Job, count: Any) -> None:
    with pytest.raises(ValueError, match=rf"trainer\.epochs\({count!r}\): give a whole number of 0 or more"):
        Run(job).train(count)


def test_within_one_process_it_goes_on_too(job: Job) -> None:
    run = Run(job).train(1, max_steps=2)
    assert len(run.seen) == 2
    assert len(run.train(2).seen) == 8


def test_a_number_of_steps_that_is_none_is_refused(job: Job) -> None:
    with pytest.raises(ValueError, match="max_steps=0: give a whole number of 1 or more"):
        Run(job).train(1, max_steps=0)


@pytest.mark.parametrize("count", [None, "a", 2.5, 0, -3])
@pytest.mark.parametrize("most", ["", "6"])
def test_a_loop_that_counts_to_no_number_is_refused_where_it_is_only_tried_too(
    tmp_path: Path, count: Any, most: str
) -> None:
    trainer = Run(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run"), "SMDDP_MAX_STEPS": most})).trainer
    with pytest.raises(ValueError, match=rf"^trainer\.steps_to\({count!r}\): give a whole number of 1 or more"):
        next(iter(trainer.steps_to(count)))


@pytest.mark.parametrize(("finish_at", "epoch"), [(3, 0), (4, 1), (6, 1)])
def test_a_condition_ends_it_and_a_rerun_knows_that(
    job: Job, finish_at: int, epoch: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="smddp.training")
    first = Run(job).train(3, finish_at=finish_at)
    assert (first.trainer.steps, first.trainer._progress.epoch) == (finish_at, epoch)
    bits = first.bits()
    del first
    caplog.clear()

    again = Run(job).train(3)
    assert again.seen == []
    assert again.bits() == bits
    lines = [line for line in caplog.messages if "nothing is left to train" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"finished at step {finish_at} by trainer.finish_if()")


def test_a_checkpoint_of_the_same_step_that_did_not_know_it_yet_is_replaced(job: Job) -> None:
    first = Run(job)
    for _ in first.trainer.epochs(3):
        for (batch,) in first.trainer.batches(first.loader):
            first.step(batch)
            first.trainer.save(wait=True)
            first.trainer.finish_if(first.trainer.steps == 3)
    del first
    assert Run(job).train(3).seen == []


def test_a_window_under_way_is_finished_first(job: Job) -> None:
    run = Run(job, accumulate=2)
    for _ in run.trainer.epochs(1):
        for number, (batch,) in enumerate(run.trainer.batches(run.loader), 1):
            run.step(batch)
            run.trainer.finish_if(number == 3)
    assert (number, run.trainer.steps) == (4, 2)


def test_batches_of_a_pipe_whose_length_nobody_knows_end_too(job: Job, tmp_path: Path) -> None:
    pipe = tmp_path / "training_0"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_text, args=['{"x": 1}\n' * 8], daemon=True).start()
    model = nn.Linear(1, 1)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    records = PipeDataset(Input(name="training", mode="Pipe", path=tmp_path / "training"), format="jsonl")
    loader = trainer.loader(records, batch_size=2)
    for _ in trainer.epochs(2, max_steps=2):
        for _batch in trainer.batches(loader):
            trainer.step(trainer.model(torch.ones(2, 1)).mean())
    assert trainer.steps == 2


def test_a_condition_that_does_not_hold_changes_nothing(job: Job) -> None:
    run = Run(job)
    for _ in run.trainer.epochs(2):
        assert not run.trainer.finish_if(False)
        for (batch,) in run.trainer.batches(run.loader):
            run.step(batch)
    assert run.trainer.steps == 8


def test_a_loop_that_counts_steps_ends_with_the_step(job: Job) -> None:
    def train() -> int:
        run = Run(job)
        batches = run.trainer.batches(run.loader)
        for _ in run.trainer.steps_to(10):
            (batch,) = next(batches)
            run.step(batch)
            run.seen.append((0, batch.flatten().tolist()))
            run.trainer.save()
            run.trainer.finish_if(run.trainer.steps == 5)
        return len(run.seen)

    assert train() == 5
    assert train() == 0


def test_a_loop_of_ones_own_gets_no_further_batches(job: Job) -> None:
    def train() -> int:
        run = Run(job)
        run.trainer.resume()
        given = 0
        for _ in range(3):
            for (batch,) in run.trainer.batches(run.loader):
                given += 1
                run.step(batch)
                run.trainer.finish_if(run.trainer.steps == 2)
        run.trainer.save(wait=True)
        return given

    assert train() == 2
    assert train() == 0


def test_batches_of_a_loader_that_keeps_no_place_end_too(job: Job) -> None:
    model = nn.Linear(1, 1)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)
    for _ in trainer.epochs(3, max_steps=6):
        for (batch,) in trainer.batches(loader):
            trainer.step(trainer.model(batch).mean())
    assert trainer.steps == 6


LOSSES = [3.0, 2.0, 1.0, 1.5, 1.2, 1.1, 0.5]


def stop_early(job: Job, epochs: int) -> list[int]:
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    stopping = EarlyStopping(patience=3)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), state={"early_stopping": stopping})
    taken = []
    for epoch in trainer.epochs(epochs):
        trainer.step(trainer.model(torch.ones(1, 1)).mean())
        taken.append(epoch)
        trainer.finish_if(stopping.update(LOSSES[epoch]))
    return taken


def test_early_stopping_counts_on_after_a_resume_and_a_rerun_trains_no_more(tmp_path: Path) -> None:
    assert stop_early(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), 7) == [0, 1, 2, 3, 4, 5]
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    assert [stop_early(job, 4), stop_early(job, 5), stop_early(job, 7), stop_early(job, 7)] == [
        [0, 1, 2, 3],
        [4],
        [5],
        [],
    ]


PROGRAM = """
import torch
from torch import nn
from torch.utils.data import TensorDataset
import smddp

def main(job):
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = trainer.loader(TensorDataset(torch.ones(16, 1)), batch_size=4)
    for epoch in trainer.epochs(5):
        for (batch,) in trainer.batches(loader):
            trainer.step(trainer.model(batch).mean())
            trainer.finish_if(job.cluster.rank == 1 and trainer.steps == 6)
    print(trainer.steps, flush=True)

smddp.run(main)
"""


@pytest.mark.slow
def test_a_condition_on_one_rank_ends_all_and_a_rerun_ends_well(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    environs = [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2
    first, again = run_ranks(PROGRAM, environs), run_ranks(PROGRAM, environs)
    assert [(rank.code, rank.printed) for rank in first + again] == [(0, "6\n")] * 4, first + again
    assert "finished at step 6 by trainer.finish_if(): nothing is left to train" in again[0].logged
    assert "finished at step" not in first[0].logged + again[1].logged


def test_a_job_that_is_only_tried_ends_after_its_steps_whatever_the_loop_asks_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")

    def tried(steps: int) -> Run:
        return Run(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run"), "SMDDP_MAX_STEPS": str(steps)}))

    assert tried(6).train(100).trainer.steps == 6
    assert "SMDDP_MAX_STEPS=6: training ends after at most 6 optimizer steps" in caplog.text
    assert "step=3 " in caplog.text  # before log_every
    leave()
    assert tried(6).train(100).seen == []
    assert "begin anew, or raise SMDDP_MAX_STEPS to continue" in caplog.text
    leave()
    assert list(tried(6).trainer.steps_to(6)) == []
    assert "begin anew, or ask for more steps to continue" in caplog.text
    leave()
    again = tried(9).train(100, max_steps=50)
    assert (again.trainer.steps, len(again.seen)) == (9, 3)
    del again
    leave()
    caplog.clear()
    assert tried(12).train(100, max_steps=10).trainer.steps == 10
    assert "SMDDP_MAX_STEPS" not in caplog.text
    leave()
    by_steps = tried(12)
    batches = by_steps.trainer.batches(by_steps.loader)
    for _ in by_steps.trainer.steps_to(1000):
        by_steps.step(next(batches)[0])
    assert by_steps.trainer.steps == 12
