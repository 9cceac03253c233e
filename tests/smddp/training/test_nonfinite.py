"""Gradients that are NaN or inf: what each action does, what it says, and what is not an event."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from smddp import CheckpointPolicy, Retention, Trainer
from smddp.checkpoint import list_checkpoints
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.distributed import leave
from smddp.errors import TrainingDivergedError
from smddp.job import Job


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


class Run:
    """Six steps an epoch; the batch of each step in ``bad`` is full of ``value``."""

    def __init__(self, job: Job, bad: set[int], value: float = float("nan"), **options: Any) -> None:
        inputs = torch.randn(24, 2, generator=torch.Generator().manual_seed(2))
        for step in bad:
            inputs[4 * step - 4 : 4 * step] = value
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.5)
        self.trainer = Trainer(job, self.model, self.optimizer, scheduler=self.scheduler, **options)
        self.loader = self.trainer.loader(TensorDataset(inputs), batch_size=4, shuffle=False)

    def train(
        self, loss: Callable[[Tensor], Tensor] = lambda output: output.square().mean(), max_steps: int | None = None
    ) -> None:
        for _ in self.trainer.epochs(1, max_steps=max_steps):
            for (batch,) in self.trainer.batches(self.loader):
                self.trainer.step(loss(self.trainer.model(batch)))


def state(run: Run) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"accumulate": 2}, {"precision": "fp16", "ema": 0.9}])
@pytest.mark.slow
def test_skip_goes_on_as_if_the_batch_had_never_been(tmp_path: Path, options: dict[str, Any]) -> None:
    run = Run(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")}), {3}, on_nonfinite="skip", **options)
    run.train()
    leave()

    without = Run(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "without")}), set(), **options)
    batches = iter(without.loader)
    for _ in without.trainer.epochs(1):
        for number, (batch,) in enumerate(batches):
            if number // options.get("accumulate", 1) != 2:
                without.trainer.step(without.trainer.model(batch).square().mean())
    for name, value in state(run).items():
        assert torch.equal(value, state(without)[name]), name
    assert run.trainer.steps == 6
    overflowed = 1 if "precision" in options else 0  # at fp16's first scale
    assert run.scheduler.last_epoch == without.scheduler.last_epoch == 5 - overflowed
    if "ema" in options:
        assert run.trainer._parts.state["ema"].n_averaged == run.scheduler.last_epoch


@pytest.mark.slow
def test_each_skipped_step_is_told_and_many_are_counted(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), on_nonfinite="skip")
    for _ in trainer.epochs(1):
        for _ in range(40):
            trainer.step(trainer.model(torch.ones(2, 2)).sum() * float("nan"))
    lines = [record.getMessage() for record in caplog.records if record.name == "smddp.training.nonfinite"]
    assert lines[0] == (
        "the gradients of step 1 are not finite: the loss is not, and the first of them is that of 0.weight: the step "
        "is skipped"
    )
    assert lines[9].endswith("the step is skipped; the next ones are only counted")
    assert [line.split()[0] for line in lines[10:]] == ["16", "32"]


@pytest.mark.parametrize("clip", [{}, {"clip_norm": 1.0}])
def test_raise_names_the_step_and_the_first_parameter(job: Job, clip: dict[str, float]) -> None:
    run = Run(job, set(), on_nonfinite="raise", **clip)
    run.model[0].requires_grad_(False)

    def root(output: Tensor) -> Tensor:
        return (output * 0).sqrt().sum()  # its value is 0, and its gradient at 0 is 0 times inf

    with pytest.raises(
        TrainingDivergedError,
        match=r"gradients of step 1 are not finite: the losses of all ranks are finite, and the first .* of 1.weight",
    ):
        run.train(root)


def test_finite_gradients_whose_norm_is_not_are_an_event_too(job: Job) -> None:
    run = Run(job, set(), on_nonfinite="raise")
    with pytest.raises(
        TrainingDivergedError, match="losses of all ranks are finite, and each of them is, but not their"
    ):
        run.train(lambda output: output.sum() * 1e35)


def test_the_norm_that_was_looked_at_is_in_the_metric_line(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    Run(job, {2}, on_nonfinite="skip", log_every=1).train()
    lines = [line for line in caplog.messages if line.startswith("step=")]
    assert ["grad_norm=nan" in line for line in lines] == [False, True, False, False, False, False]
    assert all("grad_norm=" in line for line in lines)


@pytest.mark.parametrize(("accumulate", "samples"), [(1, "4, 5, 6, 7"), (2, "6, 7")])
def test_the_samples_of_the_micro_batch_are_named(job: Job, accumulate: int, samples: str) -> None:
    run = Run(job, set(), on_nonfinite="raise", accumulate=accumulate)
    run.loader.dataset.dataset.tensors[0][7] = float("nan")  # type: ignore[attr-defined]
    with pytest.raises(
        TrainingDivergedError, match=rf"step 2 .*: the loss is not \(samples {samples}\), and the first"
    ):
        run.train()


def test_samples_are_named_while_they_are_few_and_known(job: Job) -> None:
    model = nn.Linear(1, 1)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), on_nonfinite="raise")
    loader = trainer.loader(TensorDataset(torch.full((80, 1), float("nan"))), batch_size=40, shuffle=False)
    with pytest.raises(TrainingDivergedError, match=r"\(samples 0, 1, .* 31 and 8 more\)"):
        for (batch,) in trainer.batches(loader):
            trainer.step(trainer.model(batch).sum())
    for number, _ in enumerate(trainer.batches(loader)):
        assert trainer._data.samples(0) == list(range(40 * number, 40 * number + 40))
        trainer._data.settle()  # as a save does: the position is behind the batch now
        assert trainer._data.samples(0) == []


def test_an_infinite_loss_is_an_event_too(job: Job) -> None:
    run = Run(job, {2}, float("inf"), on_nonfinite="raise")
    with pytest.raises(TrainingDivergedError, match="gradients of step 2 are not finite: the loss is not"):
        run.train()


@pytest.mark.slow
def test_stop_leaves_a_durable_checkpoint_from_which_a_rerun_goes_on(tmp_path: Path) -> None:
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    policy = CheckpointPolicy(keep=Retention(last=10))
    run = Run(job, {4}, on_nonfinite="stop", checkpoints=policy)
    with pytest.raises(TrainingDivergedError, match=r"step 4 .*; the checkpoint of step 3 has the state before it"):
        run.train()
    assert [(info.step, info.valid) for info in list_checkpoints(job.checkpoint_dir)] == [(3, True)]

    undisturbed = Run(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), set())
    undisturbed.train()
    mended = Run(job, set(), on_nonfinite="stop")
    mended.train()
    for name, value in state(mended).items():
        assert torch.equal(value, state(undisturbed)[name]), name


def test_a_step_that_only_fp16_cannot_hold_is_the_scalers_business(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    run = Run(job, set(), precision="fp16", on_nonfinite="raise")
    scales = []

    def large(output: Tensor) -> Tensor:
        scales.append(run.trainer._parts.state["scaler"].state_dict()["scale"])
        return output.sum() * 100

    run.train(large)
    assert scales[-1] < scales[0]
    assert run.trainer.steps == 6
    assert "smddp.training.nonfinite" not in {record.name for record in caplog.records}


@pytest.mark.parametrize("steps", [50, 45], ids=["metric line", "save"])
def test_a_loss_scaler_that_skips_every_step_ends_the_training(job: Job, steps: int) -> None:
    model = network()
    first = {name: value.clone() for name, value in model.named_parameters()}
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp16")
    with pytest.raises(TrainingDivergedError, match=rf"at step {steps} the loss scale is .* sqrt\(0\)"):
        for _ in trainer.epochs(1):
            for _ in range(steps):
                output = trainer.model(torch.ones(2, 2))
                zero = (output - output.detach()).square().sum()
                trainer.step(output.square().mean() + zero.sqrt())  # finite, with a gradient of NaN
    assert all(torch.equal(value, first[name]) for name, value in model.named_parameters())
    assert not list_checkpoints(job.checkpoint_dir)


def test_a_skipped_step_leaves_the_loss_scale_as_it_was(job: Job) -> None:
    run = Run(job, {1}, precision="fp16", on_nonfinite="skip")
    scales = []

    def small(output: Tensor) -> Tensor:
        scales.append(run.trainer._parts.state["scaler"].state_dict()["scale"])
        return output.sum() * 1e-4

    run.train(small)
    assert len(set(scales)) == 1


def test_after_a_resume_a_skipped_step_puts_the_buffers_of_the_checkpoint_back(job: Job) -> None:
    first = Run(job, set())
    first.train()
    kept = state(first)
    del first
    again = Run(job, set(), on_nonfinite="skip")
    again.trainer.resume()
    again.trainer.step(again.trainer.model(torch.full((4, 2), float("nan"))).sum())
    for name, value in state(again).items():
        assert torch.equal(value, kept[name]), name


def test_a_trainer_in_the_state_of_another_skips_too_and_cannot_stop(job: Job) -> None:
    def kept(action: Any) -> tuple[nn.Module, Trainer]:
        model = network()
        return model, Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), on_nonfinite=action)

    first = kept("skip")[1]
    for _ in Run(job, set(), state={"kept": first}).trainer.epochs(1):
        first.step(first.model(torch.randn(4, 2)).sum())
    del first
    model, trainer = kept("skip")
    run = Run(job, set(), state={"kept": trainer})
    run.trainer.resume()
    resumed = {name: value.clone() for name, value in model.state_dict().items()}
    trainer.step(trainer.model(torch.full((4, 2), float("nan"))).sum())
    for name, value in model.state_dict().items():
        assert torch.equal(value, resumed[name]), name
    with pytest.raises(ValueError, match=r"on_nonfinite='stop' saves, and a Trainer in state= has no checkpoints: use"):
        Run(job, set(), state={"kept": kept("stop")[1]})


def test_an_action_that_is_none_is_refused(job: Job) -> None:
    model = network()
    with pytest.raises(ValueError, match=r'on_nonfinite=\'ignore\': give "skip", "stop", "raise", "rewind", or'):
        Trainer(job, model, torch.optim.SGD(model.parameters()), on_nonfinite="ignore")  # type: ignore[arg-type]


PROGRAM = """
import os
import sys
import torch
from torch import nn
import smddp
from smddp.errors import TrainingDivergedError

def main(job):
    for number, action in enumerate(["skip", "raise", "stop"]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        trainer = smddp.Trainer(
            job, model, torch.optim.SGD(model.parameters(), lr=0.1), on_nonfinite=action, accumulate=2, name=action
        )
        try:
            for _ in trainer.epochs(1):
                for micro_batch in range(6):
                    value = float("nan") if (job.cluster.rank, micro_batch) == (1, 3) else 1.0
                    trainer.step(trainer.model(torch.randn(4, 2) * value).square().mean())
        except TrainingDivergedError as error:
            print(action, error)
        sums = [value.double().sum().item() for value in model.state_dict().values()]
        assert all(value == value for value in sums), sums
        print(action, trainer.steps, *sums)
    data = torch.ones(80, 2)
    data[17] = float("nan")
    model = nn.Linear(2, 1)
    trainer = smddp.Trainer(
        job, model, torch.optim.SGD(model.parameters(), lr=0.1), on_nonfinite="raise", name="data"
    )
    loader = trainer.loader(torch.utils.data.TensorDataset(data), batch_size=8)
    try:
        for _ in trainer.epochs(1):
            for (batch,) in trainer.batches(loader):
                mine = trainer._data.samples(0)
                trainer.step(trainer.model(batch).sum())
    except TrainingDivergedError as error:
        print("not finite", 17 in mine, mine, str(error).partition(": ")[2])

smddp.run(main)
"""


@pytest.mark.slow
def test_all_ranks_do_the_same_and_name_the_one_whose_loss_it_was(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    ranks = run_ranks(PROGRAM, [{"SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    event = (
        "the gradients of step 2 are not finite: the loss of rank 1 is not, and the first of them is that of 0.weight"
    )
    one, other = ([line for line in rank.printed.splitlines() if "not finite" in line] for rank in ranks)
    of_data = [one.pop(), other.pop()]
    rank = next(rank for rank, line in enumerate(of_data) if line.startswith("not finite True"))
    samples = of_data[rank].partition("[")[2].partition("]")[0]
    assert len(samples.split(", ")) == 4
    assert all(f" the loss of rank {rank} is not (samples {samples}), and" in line for line in of_data), of_data
    assert one == other
    assert [line.startswith(f"{action} {event}") for action, line in zip(["raise", "stop"], one, strict=True)] == [
        True
    ] * 2
    assert f"{event}: the step is skipped" in ranks[0].logged
    assert event not in ranks[1].logged
    ends = [[line.split() for line in rank.printed.splitlines() if "not finite" not in line] for rank in ranks]
    assert ends[0] == ends[1]
    assert [line[:2] for line in ends[0]] == [["skip", "3"], ["raise", "1"], ["stop", "1"]]
    assert [path.name for path in (tmp_path / "run").rglob("step-*") if "stop" in str(path)][:1] == [
        "step-000000000001"
    ]


class Noisy(Run):
    """A run with dropout and an average, so that its weights depend on the random state and on each step."""

    def __init__(self, job: Job, bad: set[int], **options: Any) -> None:
        super().__init__(job, bad, ema=0.9, checkpoints=CheckpointPolicy(every=2), **options)

    def train(
        self, loss: Callable[[Tensor], Tensor] = lambda output: output.square().mean(), max_steps: int | None = None
    ) -> None:
        super().train(lambda output: loss(nn.functional.dropout(output, 0.3)), max_steps)


def everything(run: Run) -> dict[str, Any]:
    average = run.trainer._parts.state["ema"]
    return {"weights": state(run), "ema": average.state_dict(), "rate": run.scheduler.get_last_lr()}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    return torch.equal(one, other) if isinstance(one, Tensor) else bool(one == other)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_rewind_is_a_resume_that_passes_over_the_samples(tmp_path: Path, precision: Any) -> None:
    # Step 4 is bad: the weights go back to step 2, and the batches of the steps 5 and 6 come next.
    options: dict[str, Any] = {"on_nonfinite": "rewind", "precision": precision}
    run = Noisy(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")}), {4}, **options)
    run.train()
    assert run.trainer.steps == 4
    rewound = everything(run)
    leave()

    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "without")})
    Noisy(job, set(), **options).train(max_steps=2)
    leave()
    after = Noisy(job, set(), **options)
    after.trainer.resume()
    order = after.trainer._data.order
    assert order is not None
    order.load_state_dict({**order.state_dict(), "consumed": 16})
    after.train()
    assert same(rewound, everything(after))


def test_a_rewind_is_in_the_next_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)})
    Noisy(job, {4}, on_nonfinite="rewind").train()
    assert "back to the checkpoint of step 2; the data do not go back" in caplog.text
    newest = list_checkpoints(str(job.checkpoint_dir))[-1].manifest
    assert newest is not None
    assert (newest.step, newest.epoch) == (4, 1)
    leave()
    again = Noisy(job, {4}, on_nonfinite="rewind")
    again.train()
    assert again.trainer.steps == 4


def test_a_save_that_fails_before_a_rewind_counts_and_ends_no_training(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit = DirectoryStore.commit

    def full(store: DirectoryStore, step: int, *arguments: Any, **options: Any) -> None:
        if step == 4:
            raise OSError(28, "No space left on device")
        commit(store, step, *arguments, **options)

    monkeypatch.setattr(DirectoryStore, "commit", full)
    run = Noisy(job, {5}, on_nonfinite="rewind")
    for batch in itertools.islice(run.trainer.batches(run.loader), 6):
        run.trainer.step(run.trainer.model(batch[0]).square().mean())
    assert "back to the checkpoint of step 2" in caplog.text
    assert "No space left on device; earlier ones are as they were; this was failure 1 of 2 in a row" in caplog.text
    assert "training ends" not in caplog.text


def test_metrics_of_a_step_that_was_undone_are_in_no_checkpoint(tmp_path: Path) -> None:
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)})
    run = Noisy(job, {4}, on_nonfinite="rewind")
    for number, (batch,) in enumerate(run.trainer.batches(run.loader), start=1):  # batch 5 is step 3 again
        run.trainer.step(run.trainer.model(batch).square().mean())
        if number == 3:
            run.trainer.log(accuracy=0.9)
        if number == 5:
            assert run.trainer.steps == 3
            run.trainer.save(wait=True)
            break
    newest = list_checkpoints(str(job.checkpoint_dir))[-1].manifest
    assert newest is not None
    assert newest.step == 3
    assert "accuracy" not in newest.metrics


def test_without_a_checkpoint_there_is_no_way_back(job: Job) -> None:
    run = Noisy(job, {1}, on_nonfinite="rewind")
    with pytest.raises(TrainingDivergedError, match=r"gradients of step 1 .* there is none yet: save earlier"):
        run.train()


def test_only_so_many_rewinds_are_made(job: Job) -> None:
    run = Noisy(job, {4, 5, 6}, on_nonfinite="rewind", rewinds=2)
    with pytest.raises(TrainingDivergedError, match="has gone back 2 times, as often as rewinds= allows"):
        run.train()


def test_an_inner_trainer_can_not_rewind(job: Job) -> None:
    models = [network(), network()]
    inner, outer = (torch.optim.SGD(model.parameters(), lr=0.1) for model in models)
    part = Trainer(job, models[0], inner, on_nonfinite="rewind")
    with pytest.raises(ValueError, match="on_nonfinite='rewind' loads a checkpoint"):
        Trainer(job, models[1], outer, state={"inner": part})


TWO_RANKS = """
import os, sys, torch
from torch import nn
import smddp
from smddp.process.exit_codes import RESUMABLE

def main(job):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.2), nn.BatchNorm1d(8), nn.Linear(8, 1))
    inputs = torch.randn(48, 2)
    if BAD:
        inputs[24:28] = float("nan")  # step 4 on rank 0 alone
    policy = smddp.CheckpointPolicy(every=2)
    trainer = smddp.Trainer(
        job, model, torch.optim.Adam(model.parameters()), on_nonfinite="rewind", checkpoints=policy, ema=0.9
    )
    loader = trainer.loader(torch.utils.data.TensorDataset(inputs), batch_size=8, shuffle=False)
    batches = trainer.batches(loader)
    for step in trainer.steps_to(5):
        trainer.step(trainer.model(next(batches)[0]).square().mean())
    print(trainer.steps, [each.sum().item() for each in [*model.parameters(), *trainer.ema.parameters()]])

BAD = os.environ["BAD"] == "1"
smddp.run(main)
"""


@pytest.mark.slow
def test_two_ranks_go_back_together(run_ranks: Any, tmp_path: Path) -> None:
    first, second = run_ranks(TWO_RANKS, [{"BAD": "1", "SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert (first.code, second.code) == (0, 0), first.logged
    assert first.printed == second.printed != ""
    assert first.printed.startswith("5 ")
    assert first.logged.count("back to the checkpoint of step ") == 1, first.logged
    assert "the loss of rank 0 is not" in first.logged
