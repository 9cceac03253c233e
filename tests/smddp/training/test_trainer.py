import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from smddp import CheckpointPolicy, Retention
from smddp.checkpoint import Manifest, list_checkpoints
from smddp.data import ElasticSampler
from smddp.data.pipes import PipeDataset
from smddp.data.shards import ShardedDataset
from smddp.distributed import ranks
from smddp.job import Job
from smddp.job.channels import Input
from smddp.process.preemption import Stopped, stop_signal
from smddp.training.trainer import Trainer

SAMPLES = 40


@pytest.fixture(autouse=True)
def _fast_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often ranks look up depends on how fast they are: here always very fast."""
    ticks = itertools.count()
    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: next(ticks) * 1e-6))


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(7)
    images = torch.randn(SAMPLES, 6, generator=generator)
    return TensorDataset(images, images.sum(dim=1, keepdim=True))


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))


def loss_of(model: nn.Module, batch: list[Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


class Run:
    """One life of a training job: model, optimizer, schedule, trainer and loader."""

    def __init__(self, job: Job, *, batch_size: int = 8, workers: int = 0, **options: object) -> None:
        self.model = network()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=15)
        self.trainer = Trainer(job, self.model, optimizer, scheduler=self.scheduler, **options)  # type: ignore[arg-type]
        self.loader = self.trainer.loader(dataset(), batch_size=batch_size, num_workers=workers)
        self.seen: list[list[float]] = []

    def train(self, epochs: int = 3, before_step: Callable[[int], None] = lambda step: None) -> None:
        for _ in self.trainer.epochs(epochs):
            for batch in self.trainer.batches(self.loader):
                loss = loss_of(self.trainer.model, batch)
                before_step(self.trainer.steps + 1)
                self.trainer.step(loss)
                self.seen.append(batch[0][:, 0].tolist())

    def weights(self) -> Tensor:
        return torch.cat([weight.detach().flatten() for weight in self.model.parameters()])


def stop_from(wanted: int) -> Callable[[int], None]:
    def before(step: int) -> None:
        stop_signal.requested = step >= wanted

    return before


def checkpoints(job: Job) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in job.checkpoint_dir.glob("step-*"))


def test_it_is_the_loop_that_one_would_write_by_hand(job: Job) -> None:
    run = Run(job, seed=5, clip_norm=1.0)
    run.train(epochs=2)

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=15)
    sampler = ElasticSampler(SAMPLES, global_batch=8, seed=5)
    images, targets = dataset().tensors
    for epoch in range(2):
        sampler.start_epoch(epoch)
        for indices in sampler:
            loss = loss_of(model, [images[indices], targets[indices]])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
    assert torch.equal(run.weights(), torch.cat([weight.detach().flatten() for weight in model.parameters()]))
    assert run.scheduler.get_last_lr() == scheduler.get_last_lr()


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"precision": "fp16", "clip_norm": 0.5}])
def test_stopped_and_resumed_several_times_it_ends_with_the_same_bits(
    tmp_path: Path, options: dict[str, object]
) -> None:
    undisturbed = Run(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), **options)
    undisturbed.train()

    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "disturbed")})
    seen = []
    stops = []
    for wanted in (2, 4, 10, 13):
        run = Run(job, **options)
        with pytest.raises(Stopped):
            run.train(before_step=stop_from(wanted))
        stops.append(run.trainer.steps)
        seen += run.seen
        stop_signal.requested = False
    last = Run(job, **options)
    last.train()
    seen += last.seen

    assert torch.equal(last.weights(), undisturbed.weights())
    assert last.trainer.steps == undisturbed.trainer.steps == 15
    assert stops == [3, 4, 10, 13]  # a stop is heard at the next step at which the ranks look up
    assert seen == undisturbed.seen  # what the loop does after a step is done, too, before a stop


def test_worker_processes_keep_the_order_and_the_place(tmp_path: Path) -> None:
    undisturbed = Run(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}))
    undisturbed.train(epochs=1)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "disturbed")})
    with pytest.raises(Stopped):
        Run(job, workers=1).train(epochs=1, before_step=stop_from(3))
    stop_signal.requested = False
    resumed = Run(job, workers=1)
    resumed.train(epochs=1)
    assert torch.equal(resumed.weights(), undisturbed.weights())


def test_a_finished_job_has_nothing_left_to_train(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    first = Run(job)
    first.train(epochs=1)
    trained = first.weights()
    del first
    again = Run(job)
    again.train(epochs=1)
    assert again.seen == []
    assert torch.equal(again.weights(), trained)
    assert "nothing is left to train" in caplog.text


def test_a_stop_during_evaluation_is_honoured_and_only_the_evaluation_comes_again(job: Job) -> None:
    run = Run(job)
    evaluated = []
    with pytest.raises(Stopped):
        for epoch in run.trainer.epochs(2):
            for batch in run.trainer.batches(run.loader):
                run.trainer.step(loss_of(run.trainer.model, batch))
            stop_signal.requested = epoch == 0
            evaluated.append(epoch)
            run.trainer.sum(1)
    assert run.trainer.steps == 5
    stop_signal.requested = False

    resumed = Run(job)
    trained = []
    for epoch in resumed.trainer.epochs(2):
        for batch in resumed.trainer.batches(resumed.loader):
            resumed.trainer.step(loss_of(resumed.trainer.model, batch))
            trained.append(epoch)
        resumed.trainer.sum(1)
        evaluated.append(epoch)
    assert evaluated == [0, 0, 1]
    assert trained == [1] * 5


def test_a_stop_before_the_first_step_saves_nothing_and_stops(job: Job) -> None:
    run = Run(job)
    stop_signal.requested = True
    with pytest.raises(Stopped):
        next(iter(run.trainer.epochs(1)))
    assert checkpoints(job) == []


def test_a_sum_within_a_batch_never_stops_there(job: Job) -> None:
    run = Run(job)

    def stop_and_sum(step: int) -> None:
        stop_signal.requested = True
        assert run.trainer.sum(torch.tensor(2)).item() == 2

    with pytest.raises(Stopped):
        run.train(before_step=stop_and_sum)
    assert run.trainer.steps == 1
    assert checkpoints(job) == [1]


def test_checkpoints_come_every_n_steps_and_at_each_epochs_end(job: Job) -> None:
    Run(job, checkpoints=CheckpointPolicy(every=2, keep=Retention(last=100))).train(epochs=2)
    assert checkpoints(job) == [2, 4, 5, 6, 8, 10]


def test_checkpoints_come_by_the_clock(job: Job) -> None:
    Run(job, checkpoints=CheckpointPolicy(seconds=1e-9, keep=Retention(last=100))).train(epochs=1)
    assert checkpoints(job) == [1, 3, 5]  # whenever the ranks look up


def test_only_the_last_checkpoints_are_kept(job: Job) -> None:
    Run(job, checkpoints=CheckpointPolicy(keep=Retention(last=2))).train(epochs=4)
    assert checkpoints(job) == [15, 20]


def test_a_step_that_fp16_skips_consumes_its_batch(job: Job) -> None:
    run = Run(job, precision="fp16")
    before = run.weights()
    for _ in run.trainer.epochs(1):
        batch = next(iter(run.trainer.batches(run.loader)))
        run.trainer.step(loss_of(run.trainer.model, batch) * float("inf"))
        break
    assert torch.equal(run.weights(), before)
    assert run.trainer.steps == 1
    assert len(run.loader.batch_sampler.order) == 4  # batches are left of 5


def test_metric_lines_tell_step_epoch_loss_and_rate(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="smddp.metrics.metric_lines")
    run = Run(job, log_every=5)
    for _ in run.trainer.epochs(1):
        for batch in run.trainer.batches(run.loader):
            run.trainer.step(loss_of(run.trainer.model, batch))
        run.trainer.log(accuracy=torch.tensor(0.5), count=3)
    line, logged = (record.getMessage() for record in caplog.records if record.name == "smddp.metrics.metric_lines")
    assert line.startswith("step=5 epoch=1/1 loss=")
    assert " lr=" in line
    assert float(line.rpartition("samples_per_second=")[2]) > 0
    assert logged == "step=5 epoch=1/1 accuracy=0.5 count=3"


def test_a_metric_line_has_the_norm_that_clipping_measured(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="smddp.metrics.metric_lines")
    run = Run(job, log_every=1, clip_norm=1e-3)
    run.trainer.step(run.model[3].bias.sum() * 30)  # type: ignore[index, union-attr]
    assert "grad_norm=30" in caplog.text


@pytest.mark.parametrize("accumulate", [1, 2])
def test_timing_tells_where_the_time_went_and_changes_no_bit(
    accumulate: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="smddp.metrics.metric_lines")
    policy = CheckpointPolicy(every=2)
    runs = []
    for timing in (False, True):
        job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / str(timing))})
        run = Run(job, log_every=5, accumulate=accumulate, timing=timing, checkpoints=policy)
        run.train(epochs=2)
        runs.append(run)
    assert torch.equal(runs[0].weights(), runs[1].weights())
    lines = [
        dict(pair.split("=") for pair in record.getMessage().split())
        for record in caplog.records
        if record.name == "smddp.metrics.metric_lines"
    ]
    assert not any(name.startswith("time_") for line in lines[:2] for name in line)
    for line in lines[2:]:
        shares = {name: float(value) for name, value in line.items() if name.startswith("time_")}
        assert shares.keys() == {
            f"time_{phase}" for phase in ("data", "forward", "backward", "optimizer", "checkpoint", "other")
        }
        assert sum(shares.values()) == pytest.approx(1, abs=0.01)
        assert min(shares.values()) > 0
        assert float(line["tflops"]) > 0
        assert "mfu" not in line  # no CPU's peak is known
        assert 0.01 < float(line["peak_memory_gib"]) < 100


def manifests(job: Job) -> dict[int, Manifest]:
    """All checkpoints, each of which must be whole."""
    found = list_checkpoints(job.checkpoint_dir)
    assert [info.reason for info in found if not info.valid] == []
    return {info.step: info.manifest for info in found if info.manifest is not None}


def train_and_log(run: Run, accuracies: list[float], evaluate: Callable[[], None] = lambda: None) -> None:
    for epoch in run.trainer.epochs(len(accuracies)):
        for batch in run.trainer.batches(run.loader):
            run.trainer.step(loss_of(run.trainer.model, batch))
        evaluate()
        run.trainer.log(accuracy=accuracies[epoch])


def test_metrics_are_those_of_the_very_step(job: Job) -> None:
    train_and_log(Run(job, checkpoints=CheckpointPolicy(every=2, keep=Retention(last=100))), [0.5, 0.7])
    metrics = {step: manifest.metrics for step, manifest in manifests(job).items()}
    assert metrics == {2: {}, 4: {}, 5: {"accuracy": 0.5}, 6: {}, 8: {}, 10: {"accuracy": 0.7}}


def test_a_metric_that_is_called_as_the_line_begins_is_refused(job: Job) -> None:
    model = torch.nn.Linear(1, 1)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="no metric can be called 'step'"):
        trainer.log(step=3)


def test_metrics_logged_one_by_one_at_one_step_are_all_kept(job: Job) -> None:
    run = Run(job)
    train_and_log(run, [0.5], evaluate=lambda: run.trainer.log(loss=1.5))
    assert manifests(job)[5].metrics == {"loss": 1.5, "accuracy": 0.5}


def test_the_epochs_end_replaces_the_checkpoint_that_was_due_before_its_evaluation(job: Job) -> None:
    before = []

    def evaluate() -> None:
        run.trainer.sum(1)  # a boundary within the evaluation
        before.append((run.trainer.steps, len(checkpoints(job))))

    run = Run(job, checkpoints=CheckpointPolicy(every=5, keep=Retention(last=100)))
    train_and_log(run, [0.5, 0.7], evaluate)
    found = manifests(job)
    assert {step: (each.epoch, each.position, each.metrics) for step, each in found.items()} == {
        5: (1, 0, {"accuracy": 0.5}),
        10: (2, 0, {"accuracy": 0.7}),
    }
    assert [path.name for path in (job.checkpoint_dir / "step-000000000005").iterdir() if path.is_dir()] == [
        found[5].directory
    ]


def test_a_checkpoint_by_the_clock_within_the_evaluation_spoils_nothing(job: Job) -> None:
    keep = Retention(last=1, best=1, metric="accuracy")
    run = Run(job, checkpoints=CheckpointPolicy(seconds=1e-9, keep=keep))
    train_and_log(run, [0.9, 0.7], evaluate=lambda: [run.trainer.sum(1) for _ in range(3)] and None)
    assert {step: each.metrics for step, each in manifests(job).items()} == {
        5: {"accuracy": 0.9},
        10: {"accuracy": 0.7},
    }


def test_the_best_checkpoint_stays_after_a_resume_too(job: Job) -> None:
    policy = CheckpointPolicy(keep=Retention(last=1, best=1, metric="accuracy"))
    train_and_log(Run(job, checkpoints=policy), [0.5, 0.9, 0.7])
    assert checkpoints(job) == [10, 15]
    train_and_log(Run(job, checkpoints=policy), [0.5, 0.9, 0.7, 0.8])
    assert checkpoints(job) == [10, 20]
    train_and_log(Run(job, checkpoints=policy), [0.5, 0.9, 0.7, 0.8, 0.95])
    assert checkpoints(job) == [25]


def test_a_checkpoint_knows_the_place_in_the_epoch_and_the_hyperparameters(job: Job) -> None:
    job = dataclasses.replace(job, hyperparameters={"lr": 0.1, "limit": float("inf")})
    run = Run(job, checkpoints=CheckpointPolicy(every=3, keep=Retention(last=100)))
    run.train(epochs=1)
    found = manifests(job)
    assert (found[3].epoch, found[3].position) == (0, 24)
    assert found[3].hyperparameters == {"lr": 0.1, "limit": "Infinity"}


def test_a_resume_with_other_hyperparameters_is_told(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="smddp.checkpoint")
    Run(dataclasses.replace(job, hyperparameters={"lr": 0.1, "seed": 1})).train(epochs=1)
    Run(dataclasses.replace(job, hyperparameters={"lr": 0.2, "seed": 1})).train(epochs=2)
    (line,) = [line for line in caplog.messages if "hyperparameters changed" in line]
    assert "lr=0.2 (was 0.1)" in line
    assert "seed" not in line


def test_auto_measures_a_save_and_then_saves_no_more_often_than_pays(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="smddp.training.save_schedule")
    policy = CheckpointPolicy(every="auto", seconds=1e-9, keep=Retention(last=100))
    Run(job, checkpoints=policy).train(epochs=4)
    assert len([line for line in caplog.messages if line.startswith("a checkpoint every ")]) >= 1
    by_the_clock = [step for step in checkpoints(job) if step % 5]
    assert 1 in by_the_clock  # seconds holds until something was measured
    assert by_the_clock[-1] <= 10  # the interval is seconds now, and 20 steps take far less


def test_sums_keep_integers_exact_and_give_floats_double_precision(job: Job) -> None:
    trainer = Run(job).trainer
    assert trainer.sum(2**53 + 1).item() == 2**53 + 1
    assert trainer.sum(0.1).item() == 0.1
    assert trainer.sum([3, 4]).tolist() == [3, 4]
    assert trainer.sum(torch.ones(2, 2, requires_grad=True)).requires_grad is False


def test_evaluation_sees_every_sample_once(job: Job) -> None:
    trainer = Run(job).trainer
    loader = trainer.evaluation_loader(dataset(), batch_size=7)
    seen = torch.cat([images for images, _ in trainer.batches(loader)])
    assert torch.equal(seen, dataset().tensors[0])


def test_the_saved_model_is_the_plain_one(job: Job) -> None:
    run = Run(job, precision="bf16")
    run.train(epochs=1)
    run.trainer.save_model()
    fresh = network()
    safetensors.torch.load_model(fresh, job.model_dir / "model.safetensors")
    assert torch.equal(fresh[0].weight, run.model[0].weight)  # type: ignore[index]


def test_a_second_loader_is_refused(job: Job) -> None:
    run = Run(job)
    with pytest.raises(ValueError, match=r"has a training loader already: .* trainer\.evaluation_loader"):
        run.trainer.loader(dataset(), batch_size=8)


def test_a_loader_after_the_start_is_refused(job: Job) -> None:
    model = network()
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.resume()
    with pytest.raises(ValueError, match=r"the training has begun: call trainer\.loader"):
        trainer.loader(dataset(), batch_size=8)


def test_a_batch_that_does_not_divide_is_refused_with_those_that_do(job: Job) -> None:
    with pytest.raises(ValueError, match="8 and 10"):
        Run(job, batch_size=9, accumulate=2)


def test_a_batch_that_is_passed_over_is_refused(job: Job) -> None:
    run = Run(job, accumulate=2)
    with pytest.raises(
        ValueError, match="0 of 2 micro-batches of the optimizer step were taken, where 1 were given out"
    ):
        for _ in run.trainer.epochs(1):
            for number, batch in enumerate(run.trainer.batches(run.loader)):
                if number > 0:
                    run.trainer.step(loss_of(run.trainer.model, batch))


@pytest.mark.parametrize(
    "options",
    [{"accumulate": 0}, {"clip_norm": 0.0}, {"clip_value": -1.0}, {"log_every": 0}],
)
def test_numbers_out_of_range_are_refused_by_name(job: Job, options: dict[str, float]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"{name}=.*: give a .*number"):
        Run(job, **options)  # type: ignore[arg-type]


def test_gradients_are_clipped_in_one_way_only(job: Job) -> None:
    with pytest.raises(ValueError, match=r"clip_norm=1.0 and clip_value=0.5: give one of them"):
        Run(job, clip_norm=1.0, clip_value=0.5)


def test_a_dataset_without_a_length_is_refused(job: Job) -> None:
    class Endless(torch.utils.data.IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(int, 1)

    model = network()
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ValueError, match="Endless has no order that could be kept"):
        trainer.loader(Endless(), batch_size=8)


def write_shards(directory: Path) -> Path:
    directory.mkdir()
    for shard in range(3):
        lines = (f'{{"x": {number / SAMPLES}}}\n' for number in range(shard * 20, shard * 20 + 20))
        (directory / f"{shard}.jsonl").write_text("".join(lines))
    return directory


def train_on_shards(job: Job, location: Path, *, stop_at: int | None = None) -> tuple[Tensor, list[float]]:
    model = network()
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    shards = ShardedDataset(location, decode=lambda record: torch.full((6,), record["x"]), window=16)
    loader = trainer.loader(shards, batch_size=8, tail="short")
    seen: list[float] = []
    try:
        for _ in trainer.epochs(2):
            for batch in trainer.batches(loader):
                seen += batch[:, 0].tolist()
                stop_signal.requested = trainer.steps + 1 == stop_at
                trainer.step(trainer.model(batch).square().mean())
    except Stopped:
        stop_signal.requested = False
    return torch.cat([weight.detach().flatten() for weight in model.parameters()]), seen


def test_shards_are_trained_on_like_any_dataset_and_resumed_in_mid_epoch(tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards")
    undisturbed, seen = train_on_shards(Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "undisturbed")}), shards)
    assert len(set(seen[:60])) == len(set(seen[60:])) == 60
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path / "run")})
    _, before = train_on_shards(job, shards, stop_at=11)  # after three steps of the second epoch
    resumed, after = train_on_shards(job, shards)
    assert before + after == seen
    assert torch.equal(resumed, undisturbed)


def test_a_shard_that_the_index_knows_and_that_is_gone_is_refused(job: Job, tmp_path: Path) -> None:
    shards = write_shards(tmp_path / "shards")
    ShardedDataset(shards).index.write(shards)
    (shards / "1.jsonl").unlink()
    with pytest.raises(ValueError, match=r"1.jsonl is not in .*: restore them, or remove shards.json"):
        train_on_shards(job, shards)


def test_shards_are_evaluated_once_each(job: Job, tmp_path: Path) -> None:
    trainer = Run(job).trainer
    shards = ShardedDataset(write_shards(tmp_path / "shards"), decode=lambda record: record["x"])
    seen = [value for batch in trainer.batches(trainer.evaluation_loader(shards, batch_size=7)) for value in batch]
    assert [round(float(value) * SAMPLES) for value in seen] == list(range(60))


def test_a_loop_over_pipes_begins_though_nobody_knows_its_last_step(job: Job, tmp_path: Path) -> None:
    model = network()
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    pipes = PipeDataset(Input(name="training", mode="Pipe", path=tmp_path / "training"), format="jsonl")
    trainer.loader(pipes, batch_size=4)
    assert next(trainer.epochs(2)) == 0


@pytest.mark.parametrize("use", ["loader", "evaluation_loader"])
def test_pipes_that_cannot_do_it_are_refused(job: Job, tmp_path: Path, use: str) -> None:
    model = network()
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    pipes = PipeDataset(Input(name="training", mode="Pipe", path=tmp_path / "training"), format="jsonl")
    options = {"tail": "short"} if use == "loader" else {}
    with pytest.raises(ValueError, match="'training' comes through pipes"):
        getattr(trainer, use)(pipes, batch_size=4, **options)


@pytest.mark.parametrize("begin", [Trainer.resume, Trainer.save])
def test_a_resume_comes_once_and_before_a_save(job: Job, begin: Callable[[Trainer], object]) -> None:
    model = nn.Linear(2, 1)
    trainer = Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), progress=False)
    begin(trainer)
    with pytest.raises(ValueError, match=r"has begun already: call resume\(\) once, before the first step"):
        trainer.resume()
