"""Loops other than the README's: what the checkpoint holds, where they go on, and what is refused."""

from __future__ import annotations

import gc
import itertools
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader, sampler

import smddp
from smddp import CheckpointPolicy, Retention, Trainer
from smddp.checkpoint import list_checkpoints
from smddp.distributed import leave
from smddp.errors import TrainingDivergedError
from smddp.job import Job
from smddp.process.preemption import Stopped, stop_signal
from smddp.training import save_schedule

SAMPLES = 40
WEIGHT = torch.arange(3.0)


@pytest.fixture(autouse=True)
def _end() -> Iterator[None]:
    yield
    leave()
    stop_signal.requested = False
    gc.collect()  # loaders whose workers would live as long as this process


def points() -> TensorDataset:
    return TensorDataset(torch.arange(SAMPLES, dtype=torch.float32).unsqueeze(1) / SAMPLES)


class Parts:
    """A trainer with its model and its optimizer."""

    def __init__(self, job: Job, **options: Any) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.trainer = Trainer(job, self.model, self.optimizer, **options)

    def step(self, batch: Tensor) -> None:
        self.trainer.step((self.trainer.model(batch) - batch).square().mean())


def steps_saved(job: Job) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(job.checkpoint_dir)]


# Loops of one's own


def test_a_loop_of_steps_alone_saves_before_a_stop(job: Job) -> None:
    parts = Parts(job)
    with pytest.raises(Stopped):
        for number in range(10):
            stop_signal.requested = number >= 3
            parts.step(torch.ones(2, 1))
    assert steps_saved(job)[-1] == parts.trainer.steps > 0
    stop_signal.requested = False
    again = Parts(job)
    assert again.trainer.resume()
    assert again.trainer.steps == parts.trainer.steps
    assert torch.equal(again.model.weight, parts.model.weight)


@pytest.mark.parametrize("is_nested", [False, True])
def test_batches_that_another_iteration_overtook_are_refused(job: Job, is_nested: bool) -> None:
    parts = Parts(job)
    loader = parts.trainer.loader(points(), batch_size=10)
    batches = parts.trainer.batches(loader)
    with pytest.raises(ValueError, match=r"call trainer\.batches\(loader\) anew in each epoch"):
        for _epoch in parts.trainer.epochs(2):
            parts.step(next(batches)[0])
            if is_nested:
                for (batch,) in parts.trainer.batches(loader):
                    parts.step(batch)


def test_a_second_pass_over_the_batches_of_an_epoch_is_refused(job: Job) -> None:
    parts = Parts(job)
    loader = parts.trainer.loader(points(), batch_size=8)
    with pytest.raises(ValueError, match=r"write `for epoch in trainer\.epochs\(n\)` around the batches"):
        for _epoch in range(3):
            for (batch,) in parts.trainer.batches(loader):
                parts.step(batch)
    assert parts.trainer.steps == 5
    train(parts, loader)
    assert parts.trainer.steps == 10  # the rest of the first epoch is empty


@pytest.mark.parametrize("by_batches", [False, True])
def test_without_gradients_the_training_loader_yields_its_whole_epoch(job: Job, by_batches: bool) -> None:
    parts = Parts(job, accumulate=2)
    loader = parts.trainer.loader(points(), batch_size=8)
    seen = []

    def evaluate() -> None:
        with torch.no_grad():
            seen.append(sum(len(batch) for (batch,) in (parts.trainer.batches(loader) if by_batches else loader)))

    for _ in parts.trainer.epochs(1):
        for number, (batch,) in enumerate(parts.trainer.batches(loader), 1):
            assert len(loader) == 10
            parts.step(batch)
            if number == 4:
                evaluate()
        evaluate()
    assert seen == [SAMPLES, SAMPLES]
    assert parts.trainer.steps == 5


def test_a_loop_of_steps_that_forgets_to_resume_is_refused(job: Job) -> None:
    parts = Parts(job)
    parts.step(torch.ones(2, 1))
    parts.trainer.save(wait=True)
    del parts
    again = Parts(job)
    with pytest.raises(ValueError, match=r"call trainer\.resume\(\) before its first forward pass"):
        again.step(torch.ones(2, 1))


@pytest.mark.parametrize("stop", [5, 7])  # at an epoch's end, and within one
def test_steps_to_counts_steps_over_epochs_and_goes_on_where_it_stopped(job: Job, stop: int) -> None:
    def seen(parts: Parts, count: int) -> list[list[float]]:
        given = []
        batches = parts.trainer.batches(parts.trainer.loader(points(), batch_size=8))
        for _ in parts.trainer.steps_to(count):
            (batch,) = next(batches)
            given.append(batch.flatten().tolist())
            parts.step(batch)
        return given

    undisturbed = seen(Parts(job.part("undisturbed")), 13)
    assert len(undisturbed) == 13  # of 5 steps an epoch
    disturbed = Parts(job.part("disturbed"))
    first = seen(disturbed, stop)
    weight = disturbed.model.weight
    del disturbed
    gc.collect()
    again = Parts(job.part("disturbed"))
    assert first + seen(again, 13) == undisturbed
    assert not torch.equal(again.model.weight, weight)
    assert steps_saved(job.part("disturbed"))[-1] == 13


def test_with_accumulation_steps_to_counts_optimizer_steps(job: Job) -> None:
    parts = Parts(job, accumulate=2)
    batches = parts.trainer.batches(parts.trainer.loader(points(), batch_size=8))
    numbers = []
    for number in parts.trainer.steps_to(3):
        numbers.append(number)
        parts.step(next(batches)[0])
    assert numbers == [0, 0, 1, 1, 2, 2]


def test_batches_of_an_empty_loader_end_with_an_error(job: Job) -> None:
    parts = Parts(job)
    batches = parts.trainer.batches([])
    with pytest.raises(ValueError, match="no batch in a whole epoch"):
        for _ in parts.trainer.steps_to(1):
            next(batches)


def test_steps_that_are_in_no_checkpoint_are_told_of_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path / "run"))

    def main(job: Job) -> None:
        parts = Parts(job)
        loader = parts.trainer.loader(points(), batch_size=8)
        for _ in parts.trainer.epochs(2):
            for (batch,) in parts.trainer.batches(loader):
                parts.step(batch)
            if parts.trainer.steps == 10:
                break

    with pytest.raises(SystemExit) as end:
        smddp.run(main)
    assert end.value.code == 0
    assert "the script ended with 5 steps in no checkpoint" in caplog.text


# State beside the model


def test_state_beside_the_model_is_saved_and_comes_back(job: Job) -> None:
    def with_extras(job: Job) -> tuple[Parts, nn.Module, dict[str, Any], list[torch.optim.Optimizer]]:
        average, patience = nn.Linear(1, 1), {"best": 0.0, "bad_epochs": 0}
        parts = Parts(job, state={"ema": average, "patience": patience})
        return parts, average, patience, []

    parts, average, patience, _ = with_extras(job)
    loader = parts.trainer.loader(points(), batch_size=8)
    for epoch in parts.trainer.epochs(2):
        for (batch,) in parts.trainer.batches(loader):
            parts.step(batch)
        with torch.no_grad():
            average.weight.copy_(parts.model.weight)
        patience |= {"best": epoch + 0.5, "bad_epochs": epoch}
    kept = average.weight.detach().clone()
    del parts, average
    again, other, counter, _ = with_extras(job)
    again.trainer.resume()
    assert torch.equal(other.weight, kept)
    assert counter == {"best": 1.5, "bad_epochs": 1}


def test_several_optimizers_step_together_and_are_saved(job: Job) -> None:
    def trainer() -> tuple[Trainer, nn.Module, list[torch.optim.Optimizer]]:
        torch.manual_seed(1)
        model = nn.Linear(1, 1)
        optimizers = [torch.optim.SGD([model.weight], lr=0.1, momentum=0.9), torch.optim.Adam([model.bias], lr=0.01)]
        return Trainer(job, model, optimizers), model, optimizers

    made, model, _ = trainer()
    before = [weight.detach().clone() for weight in model.parameters()]
    for _ in range(3):
        made.step(made.model(torch.ones(2, 1)).square().mean())
    assert not any(torch.equal(weight, old) for weight, old in zip(model.parameters(), before, strict=True))
    made.save(wait=True)
    del made, model
    again, _, (first, second) = trainer()
    again.resume()
    assert "momentum_buffer" in first.state_dict()["state"][0]
    assert second.state_dict()["state"][0]["step"] == 3


@pytest.mark.parametrize("name", ["model", "optimizer", "rng", "a b"])
def test_a_name_that_is_taken_or_impossible_is_refused(job: Job, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Parts(job, state={name: nn.Linear(1, 1)})


def test_state_without_a_state_is_refused(job: Job) -> None:
    with pytest.raises(TypeError, match="no state_dict"):
        Parts(job, state={"counter": 3})


def test_two_trainers_in_one_place_are_an_error_and_names_keep_them_apart(job: Job) -> None:
    first, second = Parts(job), Parts(job)
    first.trainer.resume()
    with pytest.raises(ValueError, match=r'name="generator"'):
        second.trainer.resume()
    named = Parts(job, name="critic")
    named.step(torch.ones(2, 1))
    named.trainer.save(wait=True)
    named.trainer.save_model()
    assert steps_saved(job.part("critic")) == [1]
    assert (job.model_dir / "critic" / "model.safetensors").exists()
    assert steps_saved(job) == []


@pytest.mark.parametrize("name", ["", "../other", "step-3", "a/b", ".hidden"])
def test_a_name_that_is_no_directory_is_refused(job: Job, name: str) -> None:
    with pytest.raises(ValueError, match="name a directory"):
        Parts(job, name=name)


# Loaders of one's own


def train(parts: Parts, loader: Any, *, epochs: int = 2, stop_at: int | None = None) -> list[float]:
    seen: list[float] = []
    for _ in parts.trainer.epochs(epochs):
        for (batch,) in parts.trainer.batches(loader):
            parts.step(batch)
            seen += batch.flatten().tolist()
            if parts.trainer.steps == stop_at:
                parts.trainer.save(wait=True)
                return seen
    return seen


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.slow
def test_a_plain_dataloader_is_taken_over_with_its_place(job: Job, workers: int) -> None:
    def loader(parts: Parts) -> DataLoader[Any]:
        own = DataLoader(points(), batch_size=6, shuffle=True, num_workers=workers)
        return parts.trainer.loader(own)

    whole = Parts(job.part("whole"))
    undisturbed = train(whole, loader(whole))
    assert sorted(undisturbed[:SAMPLES]) == sorted(points().tensors[0].flatten().tolist())  # the short batch, too
    parts = Parts(job)
    first = train(parts, loader(parts), stop_at=9)
    del parts
    again = Parts(job)
    assert first + train(again, loader(again)) == undisturbed
    assert torch.equal(again.model.weight, whole.model.weight)


def test_its_order_and_its_tail_are_kept(job: Job) -> None:
    parts = Parts(job, accumulate=2)
    loader = parts.trainer.loader(DataLoader(points(), batch_size=3, drop_last=True))
    assert train(parts, loader, epochs=1) == points().tensors[0].flatten().tolist()[:36]
    sampler = DistributedSampler(points(), num_replicas=1, rank=0, shuffle=True)
    shuffled = Parts(job.part("shuffled"))
    seen = train(shuffled, shuffled.trainer.loader(DataLoader(points(), batch_size=3, sampler=sampler)), epochs=1)
    assert seen != sorted(seen)
    assert len(set(seen)) == SAMPLES


@pytest.mark.parametrize("beside", [{"batch_size": 12}, {"shuffle": False}, {"tail": "short"}])
def test_what_a_dataloader_says_itself_is_not_taken_beside_it(job: Job, beside: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="leave out batch_size, shuffle and tail"):
        Parts(job).trainer.loader(DataLoader(points(), batch_size=3, shuffle=True), **beside)


@pytest.mark.parametrize("make", [None, DataLoader, StatefulDataLoader])
def test_batches_in_any_order_are_refused(job: Job, make: Any) -> None:
    options = {"batch_size": 4, "in_order": False}
    with pytest.raises(ValueError, match=r"a resume, .* would lose samples and repeat others: leave in_order out"):
        if make is None:
            Parts(job).trainer.loader(points(), num_workers=2, **options)
        else:
            Parts(job).trainer.loader(make(points(), **options))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[Tensor]]:
        return iter([(torch.ones(1),)] * 6)


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(points(), batch_size=4, sampler=WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)),
        DataLoader(points(), batch_sampler=[[1, 2], [3]]),
        DataLoader(Stream(), batch_size=2),
        DataLoader(points(), batch_size=None),
    ],
)
def test_a_dataloader_whose_place_cannot_be_kept_is_refused_with_the_remedy(job: Job, loader: Any) -> None:
    with pytest.raises(ValueError, match="StatefulDataLoader"):
        Parts(job).trainer.loader(loader)


class Mixed(DataLoader[Any]):
    """Mixes each batch with its reverse."""

    def __iter__(self) -> Iterator[Any]:
        return ([batch / 2 + batch.flip(0) / 2] for (batch,) in super().__iter__())  # type: ignore[misc]


class Half(DataLoader[Any]):
    def __len__(self) -> int:
        return super().__len__() // 2

    @property
    def _index_sampler(self) -> Any:
        return itertools.islice(self.batch_sampler or (), len(self))


class Labelled(DataLoader[Any]):
    """Changes no method of DataLoader but the constructor."""

    def __init__(self, *args: Any, labels: str, **options: Any) -> None:
        self.labels = labels
        super().__init__(*args, collate_fn=self.collate, **options)

    def collate(self, samples: list[Any]) -> Any:
        return [torch.stack([sample for (sample,) in samples]), self.labels]


@pytest.mark.parametrize(
    ("make", "named"), [(Mixed, r"Mixed has its own __iter__, and"), (Half, "own _index_sampler and __len__, and")]
)
def test_a_dataloader_with_its_own_iteration_is_refused_and_not_replaced(job: Job, make: Any, named: str) -> None:
    with pytest.raises(
        ValueError, match=named + r".* change the batches in a collate_fn; .* trainer\.batches\(\) alone"
    ):
        Parts(job).trainer.loader(make(points(), batch_size=4, shuffle=True))


def test_a_dataloader_with_its_own_constructor_keeps_its_collate_fn(job: Job) -> None:
    parts = Parts(job)
    loader = parts.trainer.loader(Labelled(points(), batch_size=4, labels="cats"))
    for _epoch in parts.trainer.epochs(1):
        assert {labels for _, labels in parts.trainer.batches(loader)} == {"cats"}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_dataloader_with_its_own_iteration_keeps_both(job: Job) -> None:
    class Doubled(StatefulDataLoader[Any]):
        def __iter__(self) -> Any:
            return ([batch * 2] for (batch,) in super().__iter__())

    def seen(epochs: int, stop_at: int | None) -> list[float]:
        parts = Parts(job)
        given = train(parts, parts.trainer.loader(Doubled(points(), batch_size=4)), epochs=epochs, stop_at=stop_at)
        leave()
        return given

    assert seen(1, 4) + seen(1, None) == (points().tensors[0] * 2).flatten().tolist()


@pytest.mark.parametrize("change", [8, -8])
def test_a_dataset_whose_length_changes_between_epochs_is_refused(job: Job, change: int) -> None:
    parts, data = Parts(job), points()
    loader = parts.trainer.loader(data, batch_size=4)
    with pytest.raises(
        ValueError, match=rf"TensorDataset has {SAMPLES + change} samples, and had {SAMPLES} when .* new run"
    ):
        for _epoch in parts.trainer.epochs(2):
            for (batch,) in parts.trainer.batches(loader):
                parts.step(batch)
            data.tensors = (torch.ones(SAMPLES + change, 1),)
    assert parts.trainer.steps == 10


def end_workers(loader: StatefulDataLoader[Any]) -> None:
    """Drop the iterator. Collected as garbage, it loses its queues first, and a worker sees only after 5 s."""
    loader.load_state_dict({})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.slow
def test_a_loader_that_keeps_its_place_goes_on_in_mid_epoch(job: Job, workers: int) -> None:
    def loader(parts: Parts) -> Any:
        torch.manual_seed(5)
        return parts.trainer.loader(
            StatefulDataLoader(points(), batch_size=4, sampler=range(SAMPLES - 1, -1, -1), num_workers=workers)
        )

    parts = Parts(job)
    taken_over = loader(parts)
    first = train(parts, taken_over, epochs=1, stop_at=4)
    end_workers(taken_over)
    del parts, taken_over
    again = Parts(job)
    second = train(again, loader(again), epochs=1)
    assert first + second == points().tensors[0].flatten().tolist()[::-1]
    assert again.trainer.steps == 10


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.slow
def test_epochs_that_a_break_ends_continue_with_the_next_epoch_of_a_loader_with_state(job: Job, workers: int) -> None:
    def seen(job: Job, epochs: int) -> list[tuple[int, list[float]]]:
        parts, given = Parts(job), []
        torch.manual_seed(5)
        loader: Any = StatefulDataLoader(
            points(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3), num_workers=workers
        )
        parts.trainer.loader(loader)
        for epoch in parts.trainer.epochs(epochs):
            for number, (batch,) in enumerate(parts.trainer.batches(loader)):
                parts.step(batch)
                given.append((epoch, batch.flatten().tolist()))
                if number == 2:
                    break
        end_workers(loader)
        del parts
        gc.collect()
        return given

    undisturbed = seen(job.part("undisturbed"), 4)
    assert len({tuple(batch) for _, batch in undisturbed}) == 12
    assert seen(job, 2) + seen(job, 4) == undisturbed


LOADERS: dict[str, Callable[..., StatefulDataLoader[Any]]] = {
    "shuffle": lambda data, _drawn, **options: StatefulDataLoader(data, batch_size=4, shuffle=True, **options),
    "generator": lambda data, drawn, **options: StatefulDataLoader(
        data, batch_size=4, shuffle=True, generator=drawn, **options
    ),
    "generator_of_two": lambda data, drawn, **options: StatefulDataLoader(
        data, batch_size=4, sampler=sampler.RandomSampler(data, generator=drawn), generator=drawn, **options
    ),
    "replacement": lambda data, drawn, **options: StatefulDataLoader(
        data, batch_size=4, sampler=sampler.RandomSampler(data, replacement=True, generator=drawn), **options
    ),
    "batch_sampler": lambda data, drawn, **options: StatefulDataLoader(
        data,
        batch_sampler=sampler.BatchSampler(sampler.RandomSampler(data, generator=drawn), 4, drop_last=False),
        generator=drawn,
        **options,
    ),
    "in_order": lambda data, _drawn, **options: StatefulDataLoader(data, batch_size=4, **options),
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", LOADERS)
def test_a_loader_that_draws_has_the_same_order_in_all_epochs_after_resumes(job: Job, kind: str, workers: int) -> None:
    def seen(job: Job, stop: str) -> list[list[float]]:
        parts = Parts(job)
        loader = parts.trainer.loader(LOADERS[kind](points(), torch.Generator().manual_seed(3), num_workers=workers))
        given = []
        for epoch in parts.trainer.epochs(4):
            if stop != f"epoch {epoch}":
                for (batch,) in parts.trainer.batches(loader):
                    parts.step(batch)
                    given.append([*batch.flatten().tolist(), torch.rand(()).item()])
                    if stop == f"step {parts.trainer.steps}":
                        break
            if stop in (f"step {parts.trainer.steps}", f"epoch {epoch}", f"end of {epoch}"):
                parts.trainer.save(wait=True)
                break
        end_workers(loader)
        leave()
        return given

    undisturbed = seen(job.part("undisturbed"), "never")
    assert len(undisturbed) == 40
    stops = ("step 4", "step 7", "epoch 1", "step 20", "end of 2", "end of 2", "step 33", "never")
    assert [batch for stop in stops for batch in seen(job.part("disturbed"), stop)] == undisturbed


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize(
    "options",
    [
        {"sampler": RandomSampler(range(SAMPLES), generator=torch.Generator())},
        {"sampler": RandomSampler(range(SAMPLES))},
        {"sampler": WeightedRandomSampler([1.0] * SAMPLES, SAMPLES, generator=torch.Generator())},
        {"batch_sampler": BatchSampler(sampler.RandomSampler(range(SAMPLES), generator=torch.Generator()), 4, False)},
    ],
)
def test_a_stateful_loader_whose_order_is_in_no_state_is_refused(job: Job, options: Any) -> None:
    with pytest.raises(ValueError, match="which keeps it in no state: a resume would continue in another order"):
        Parts(job).trainer.loader(StatefulDataLoader(points(), **options))


def test_a_loader_of_another_kind_is_told_of_once(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts(job)
    assert len(train(parts, DataLoader(points(), batch_size=8))) == 2 * SAMPLES
    told = [
        record.getMessage()
        for record in caplog.records
        if "checkpoints do not contain the position" in record.getMessage()
    ]
    assert len(told) == 1
    assert "trainer.loader()" in told[0]


def test_micro_batches_that_are_left_over_make_a_step_of_their_mean(job: Job) -> None:
    batches = [(torch.full((2, 1), value),) for value in (1.0, 2.0, 3.0, 4.0, 5.0)]
    parts = Parts(job, accumulate=3, clip_norm=1e9)
    train(parts, batches, epochs=1)
    assert parts.trainer.steps == 2

    torch.manual_seed(1)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for window in (batches[:3], batches[3:]):
        optimizer.zero_grad()
        torch.stack([(model(batch) - batch).square().mean() for (batch,) in window]).mean().backward()
        optimizer.step()
    assert torch.allclose(parts.model.weight, model.weight)


@pytest.mark.parametrize("has_order", [False, True])
def test_micro_batches_that_a_break_leaves_over_make_a_step_of_their_mean(job: Job, has_order: bool) -> None:
    parts, by_hand = Parts(job, accumulate=2), Parts(job.part("by_hand"))
    loader = parts.trainer.loader(points(), batch_size=8) if has_order else [(torch.ones(2, 1) * n,) for n in range(9)]
    seen = []
    for _ in parts.trainer.epochs(2):
        for number, (batch,) in enumerate(parts.trainer.batches(loader), 1):
            parts.step(batch)
            seen.append(batch)
            if number == 3:
                break
    assert steps_saved(job) == [2, 4]  # of each epoch's end
    for epoch in (seen[:3], seen[3:]):
        by_hand.step(torch.cat(epoch[:2]))
        by_hand.step(epoch[2])
    torch.testing.assert_close(parts.model.weight, by_hand.model.weight)


# Batches and steps that do not pair up


def resumed_after(job: Job, stop_at: int, use: Any) -> tuple[list[float], list[float]]:
    """What a disturbed run saw before and after its stop, and what one saw that was not."""

    def run(job: Job, stop_at: int | None) -> list[float]:
        parts, seen = Parts(job), []
        loader = parts.trainer.loader(points(), batch_size=4)
        for _ in parts.trainer.epochs(1):
            for number, (batch,) in enumerate(parts.trainer.batches(loader)):
                seen.append(batch[0].item())
                use(parts, number, batch)
                if parts.trainer.steps == stop_at:
                    parts.trainer.save(wait=True)
                    return seen
        return seen

    undisturbed = run(job.part("undisturbed"), None)
    return run(job, stop_at) + run(job, None), undisturbed


def test_several_steps_a_batch_count_once(job: Job) -> None:
    def use(parts: Parts, _number: int, batch: Tensor) -> None:
        for _ in range(2):
            parts.step(batch)

    disturbed, undisturbed = resumed_after(job, 6, use)
    assert len(undisturbed) == 10
    assert disturbed == undisturbed


def test_a_batch_that_is_passed_over_does_not_come_again(job: Job) -> None:
    values = []

    def use(parts: Parts, _number: int, batch: Tensor) -> None:
        values.append(batch)
        if int(batch[0].item() * SAMPLES) % 3 != 1:
            parts.step(batch)

    disturbed, undisturbed = resumed_after(job, 4, use)
    assert disturbed == undisturbed


def test_with_accumulation_each_batch_wants_its_step(job: Job) -> None:
    parts = Parts(job, accumulate=2)
    loader = parts.trainer.loader(points(), batch_size=8)
    with pytest.raises(ValueError, match=r"exactly one trainer\.step"):
        for _ in parts.trainer.epochs(1):
            for number, (batch,) in enumerate(parts.trainer.batches(loader)):
                if number != 3:
                    parts.step(batch)


# Model and optimizer that do not belong together


def test_an_optimizer_of_another_model_is_refused(job: Job) -> None:
    with pytest.raises(ValueError, match="none of the model's parameters"):
        Trainer(job, nn.Linear(1, 1), torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))


class Temperature:
    def __init__(self) -> None:
        self.value = nn.Parameter(torch.ones(()))

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value.data.copy_(state["value"])


def test_trained_parameters_that_checkpoints_would_leave_out_are_refused_on_one_rank_too(job: Job) -> None:
    model, head, temperature = nn.Linear(1, 1), nn.Linear(1, 1), Temperature()
    weights = [*model.parameters(), *head.parameters(), temperature.value]
    states: list[dict[str, Any]] = [{}, {"head": head}, {"head": head, "values": {"temperature": temperature.value}}]
    for state in states:
        with pytest.raises(ValueError, match=r"[123] of 5 parameters .* checkpoints would leave"):
            Trainer(job, model, torch.optim.SGD(weights, lr=0.1), state=state)
    Trainer(job, model, torch.optim.SGD(weights, lr=0.1), state={"head": head, "temperature": temperature})


def test_a_group_that_is_added_later_is_clipped_too(job: Job) -> None:
    parts = Parts(job, clip_norm=1e-3)
    extra = nn.Parameter(torch.ones(1))
    parts.optimizer.add_param_group({"params": [extra]})
    parts.trainer.step(parts.trainer.model(torch.ones(2, 1)).mean() + 1e6 * extra.sum())
    assert abs(extra.item() - 1) < 1e-3


def test_a_compiled_model_is_saved_under_its_own_names(job: Job) -> None:
    model = nn.Linear(1, 1)
    compiled: Any = torch.compile(model, backend="eager")
    trainer = Trainer(job, compiled, torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.step(trainer.model(torch.ones(2, 1)).mean())
    trainer.save(wait=True)
    trainer.save_model()
    assert set(torch.load(job.model_dir / "model.pt", weights_only=True)) == {"weight", "bias"}
    del trainer
    plain = Parts(job)
    assert plain.trainer.resume()


# Evaluation, and losses that are not finite


def test_random_numbers_of_an_evaluation_do_not_change_what_comes_after(job: Job) -> None:
    def run(job: Job, stop: bool) -> list[float]:
        parts, drawn = Parts(job), []
        loader, evaluation = (
            parts.trainer.loader(points(), batch_size=8),
            parts.trainer.evaluation_loader(points(), batch_size=8),
        )
        for epoch in parts.trainer.epochs(2):
            for (batch,) in parts.trainer.batches(loader):
                drawn.append(random.random() + torch.rand(1).item())
                parts.step(batch)
            with torch.no_grad():
                for number, _ in enumerate(parts.trainer.batches(evaluation)):
                    torch.rand(3)
                    random.random()
                    if stop and epoch == 0 and number == 2:
                        stop_signal.requested = True
                        parts.trainer.sum(1)
        return drawn

    random.seed(3)
    undisturbed = run(job.part("undisturbed"), stop=False)
    random.seed(3)
    with pytest.raises(Stopped):
        run(job, stop=True)
    stop_signal.requested = False
    torch.manual_seed(99)
    random.seed(99)
    assert run(job, stop=False) == undisturbed[5:]


def test_a_long_evaluation_begins_with_a_checkpoint(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save_schedule, "_LONG_EVALUATION_SECONDS", 0.0)
    parts = Parts(job, checkpoints=CheckpointPolicy(seconds=None))
    loader = parts.trainer.loader(points(), batch_size=8)
    evaluation = parts.trainer.evaluation_loader(points(), batch_size=8)
    for epoch in parts.trainer.epochs(2):
        for (batch,) in parts.trainer.batches(loader):
            parts.step(batch)
        for _ in parts.trainer.batches(evaluation):
            # The first one is expected to take as long as training on its batches, the second as long as the first.
            parts.trainer._run.open_run.checkpointer.wait()
            assert steps_saved(job)[-1] == 5 * (epoch + 1)


def test_a_short_evaluation_begins_without_a_checkpoint(job: Job) -> None:
    parts = Parts(job, checkpoints=CheckpointPolicy(seconds=None))
    loader = parts.trainer.loader(points(), batch_size=8)
    evaluation = parts.trainer.evaluation_loader(points(), batch_size=8)
    for _ in parts.trainer.epochs(2):
        for (batch,) in parts.trainer.batches(loader):
            parts.step(batch)
        list(parts.trainer.batches(evaluation))
    attempts = {path.parent.name[-2:]: path.name[-4:] for path in job.checkpoint_dir.glob("step-*/*-*")}
    assert attempts == {"05": "0001", "10": "0002"}  # each step is saved once, at its epoch's end


def test_a_model_that_diverged_is_not_saved_and_fails_the_job(job: Job) -> None:
    parts = Parts(job, checkpoints=CheckpointPolicy(every=2, seconds=None), log_every=1000)
    with pytest.raises(TrainingDivergedError, match=r"weight, bias have values that are not finite"):
        for number in range(100):
            parts.step(torch.full((2, 1), float("nan") if number == 5 else 1.0))
    assert parts.trainer.steps == 6
    parts.trainer._run.finish()
    assert steps_saved(job) == [2, 4]


def test_a_loss_that_is_not_finite_alone_is_only_told(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    parts = Parts(job, log_every=1)
    for number in range(3):
        loss = (parts.trainer.model(torch.ones(2, 1))).square().mean()
        parts.trainer.step(loss + (float("inf") if number else 0.0))
    told = [record.getMessage() for record in caplog.records if "training continues" in record.getMessage()]
    assert len(told) == 1


def test_the_metric_line_shows_the_loss_of_the_whole_step(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    parts = Parts(job, accumulate=2, log_every=1)
    for value in (1.0, 3.0):
        parts.trainer.step(0 * parts.trainer.model(torch.ones(1, 1)).sum() + value)
    assert any("loss=2 " in record.getMessage() for record in caplog.records)


def test_a_model_that_is_placed_already_stays_where_it_is(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[nn.Module] = []
    monkeypatch.setattr("smddp.distributed.dividing.move_module", lambda module, _device: moved.append(module))
    for moves in (True, False):
        model = nn.Linear(1, 1)
        trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), move_model=moves, name=f"{moves}")
        assert trainer.device == torch.device("cpu")
        assert moved == [model] * moves
        moved.clear()
    model = nn.Linear(1, 1, device="meta")
    with pytest.raises(ValueError, match="the model is on the meta device, and move_model=False leaves it there"):
        Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), move_model=False)


def test_the_old_name_of_move_model_warns(job: Job) -> None:
    model = nn.Linear(1, 1)
    with pytest.warns(DeprecationWarning, match="named move_model= now"):
        Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), place=False)


def test_a_resume_right_before_a_metric_line_shows_it(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    parts = Parts(job, log_every=3)
    for _ in range(2):
        parts.step(torch.ones(2, 1))
    parts.trainer.save(wait=True)
    del parts
    again = Parts(job, log_every=3)
    again.trainer.resume()
    again.step(torch.ones(2, 1))
    assert any(record.getMessage().startswith("step=3 epoch=1 loss=") for record in caplog.records)


def test_weights_that_a_finite_loss_spoiled_are_not_saved_either(job: Job) -> None:
    parts = Parts(job, checkpoints=CheckpointPolicy(every=1, seconds=None, keep=Retention(last=1)), log_every=1000)
    parts.step(torch.ones(2, 1))
    with pytest.raises(TrainingDivergedError):
        parts.trainer.step((0 * parts.trainer.model(torch.ones(2, 1))).sqrt().sum())  # 0, and its gradient is NaN
    with pytest.raises(TrainingDivergedError):
        parts.trainer.save_model()
    parts.trainer._run.finish()
    assert steps_saved(job) == [1]


def test_a_dataset_with_a_state_is_a_dataset(job: Job) -> None:
    class Counted(TensorDataset):
        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: object) -> None: ...

    loader = Parts(job).trainer.loader(Counted(torch.ones(8, 1)), batch_size=4)
    assert len(next(iter(loader))[0]) == 4


def test_an_evaluation_in_mid_epoch_changes_nothing(job: Job) -> None:
    def run(job: Job, stop_at: int | None = None) -> list[float]:
        parts, drawn = Parts(job), []
        loader = parts.trainer.loader(points(), batch_size=8)
        evaluation = parts.trainer.evaluation_loader(points(), batch_size=8)
        for _ in parts.trainer.epochs(1):
            for (batch,) in parts.trainer.batches(loader):
                drawn.append(torch.rand(1).item())
                parts.step(batch)
                if parts.trainer.steps == 2:
                    for number, _ in enumerate(parts.trainer.batches(evaluation)):
                        torch.rand(7)
                        if number == 2 and stop_at is not None:
                            stop_signal.requested = True
                    drawn.append(torch.rand(1).item())
        return drawn

    torch.manual_seed(3)
    undisturbed = run(job.part("undisturbed"))
    torch.manual_seed(3)
    with pytest.raises(Stopped):
        run(job, stop_at=2)
    stop_signal.requested = False
    torch.manual_seed(99)
    rest = run(job)
    assert rest  # the stop was heard once the loop was done with the batch, or the one after it
    assert rest == undisturbed[-len(rest) :]


def test_a_save_that_is_asked_for_has_what_changed_since_the_last_one(job: Job) -> None:
    patience = {"bad": 0}
    parts = Parts(job, state={"patience": patience})
    parts.step(torch.ones(2, 1))
    parts.trainer.save(wait=True)
    patience["bad"] = 1
    parts.trainer.log(accuracy=0.5)
    parts.trainer.save(wait=True)
    assert list_checkpoints(job.checkpoint_dir)[-1].manifest.metrics == {"accuracy": 0.5}  # type: ignore[union-attr]
    patience["bad"] = 7
    del parts
    again = Parts(job, state={"patience": patience})
    again.trainer.resume()
    assert patience == {"bad": 1}


def test_a_key_that_a_dict_of_the_script_has_got_since_is_named_when_it_goes(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    Parts(job, state={"patience": {"bad": 1}}).trainer.save(wait=True)
    patience = {"bad": 0, "best": 0.5}
    Parts(job, state={"patience": patience}).trainer.resume()
    assert patience == {"bad": 1}
    assert "the resume takes 'best' out of the dict 'patience' in state=" in caplog.text


def test_a_loader_that_comes_again_beside_the_training_loader_ends_no_step(job: Job) -> None:
    parts = Parts(job, accumulate=2)
    labelled = parts.trainer.loader(points(), batch_size=8)
    few = [(torch.ones(2, 1),)] * 3
    for _ in parts.trainer.epochs(1):
        others = itertools.chain.from_iterable(parts.trainer.batches(few) for _ in itertools.count())
        for (batch,), _other in zip(parts.trainer.batches(labelled), others, strict=False):
            parts.step(batch)
    assert parts.trainer.steps == 5


def test_state_that_has_a_method_named_check_is_only_state(job: Job) -> None:
    class EarlyStop:
        def check(self, loss: float) -> None:
            raise AssertionError

        def state_dict(self) -> dict[str, int]:
            return {"bad": 1}

        def load_state_dict(self, state: object) -> None: ...

    parts = Parts(job, state={"early": EarlyStop()})
    parts.step(torch.ones(2, 1))
    parts.trainer.save(wait=True)
    del parts
    assert Parts(job, state={"early": EarlyStop()}).trainer.resume()


def test_what_the_loop_does_after_a_step_is_in_its_checkpoint(job: Job) -> None:
    def run(job: Job, stop_at: int | None = None) -> tuple[dict[str, Any], Tensor]:
        counter: dict[str, Any] = {"updates": 0, "sum": torch.zeros(1)}
        parts = Parts(job, state={"counter": counter})
        loader = parts.trainer.loader(points(), batch_size=8)
        for _ in parts.trainer.epochs(2):
            for (batch,) in parts.trainer.batches(loader):
                stop_signal.requested = stop_at is not None and parts.trainer.steps + 1 >= stop_at
                parts.step(batch)
                counter["updates"] += 1  # as an average of the weights is updated
                counter["sum"] += parts.model.weight.item()
        return counter, parts.model.weight

    undisturbed, weight = run(job.part("undisturbed"))
    with pytest.raises(Stopped):
        run(job, stop_at=4)
    stop_signal.requested = False
    counter, again = run(job)
    assert counter["updates"] == undisturbed["updates"] == 10
    assert torch.equal(counter["sum"], undisturbed["sum"])
    assert torch.equal(again, weight)


def test_several_steps_a_batch_are_saved_together(job: Job) -> None:
    def run(job: Job, stop_at: int | None = None) -> tuple[int, Tensor]:
        parts = Parts(job, checkpoints=CheckpointPolicy(every=2))
        loader = parts.trainer.loader(points(), batch_size=8)
        for _ in parts.trainer.epochs(1):
            for (batch,) in parts.trainer.batches(loader):
                for _ in range(3):
                    stop_signal.requested = stop_at is not None and parts.trainer.steps + 1 >= stop_at
                    parts.step(batch)
        return parts.trainer.steps, parts.model.weight

    undisturbed = run(job.part("undisturbed"))
    with pytest.raises(Stopped):
        run(job, stop_at=7)
    stop_signal.requested = False
    steps, weight = run(job)
    assert steps == undisturbed[0] == 15
    assert torch.equal(weight, undisturbed[1])


def test_exit_code_75_without_a_checkpoint_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path / "run"))

    def train(job: Job) -> None:
        parts = Parts(job)
        for _ in range(3):
            parts.step(torch.ones(2, 1))

    def main(job: Job) -> None:
        train(job)
        gc.collect()  # the trainer is gone, and its steps are no less lost
        sys.exit(75)

    with pytest.raises(SystemExit) as end:
        smddp.run(main)
    assert end.value.code == 1
    assert "3 steps are in no checkpoint" in (tmp_path / "run" / "output" / "failure").read_text()


@pytest.mark.parametrize(("ending", "code"), [(ValueError(), 1), (SystemExit(0), 0)])
def test_a_fork_of_the_script_that_ends_says_nothing_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: BaseException, code: int
) -> None:
    monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path / "run"))
    codes = []

    def main(job: Job) -> None:
        child = os.fork()
        if child == 0:
            raise ending
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    with pytest.raises(SystemExit) as end:
        smddp.run(main)
    assert end.value.code == 0
    assert codes == [code]
    assert not (tmp_path / "run" / "output" / "failure").exists()


def test_what_cannot_be_stepped_is_refused_at_once(job: Job) -> None:
    layer = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"job\.stopping"):
        Trainer(job, layer, torch.optim.LBFGS(layer.parameters()))
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="state="):
        Trainer(job, layer, optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))


def test_a_break_and_more_batches_of_the_same_epoch_repeat_none(job: Job) -> None:
    parts, seen = Parts(job), []
    loader = parts.trainer.loader(points(), batch_size=8)
    for _ in parts.trainer.epochs(1):
        for number, (batch,) in enumerate(parts.trainer.batches(loader)):
            parts.step(batch)
            seen += batch.flatten().tolist()
            if number == 1:
                break
        for (batch,) in parts.trainer.batches(loader):
            parts.step(batch)
            seen += batch.flatten().tolist()
    assert parts.trainer.steps == 5
    assert sorted(seen) == sorted(points().tensors[0].flatten().tolist())


def test_a_script_of_one_module_that_keeps_its_batches_ends_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch, smddp\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "trainer = smddp.Trainer(smddp.Job.detect(), model, optimizer)\n"
        "batches = trainer.batches(trainer.loader(torch.ones(64, 2), 8))\n"
        "for step in trainer.steps_to(20):\n"
        "    trainer.step(trainer.model(next(batches)).sum())\n"
        "print(trainer.steps)\n"
    )
    # Python itself ends here: it closes the batches once it has emptied the modules.
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("20\n", "", 0)
