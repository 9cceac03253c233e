"""A run goes on from its newest valid checkpoint exactly where it was, or says why it cannot."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smddp.checkpoint import Checkpointer, Manifest, list_checkpoints
from smddp.checkpoint.format.manifest import MANIFEST_NAME, STATE_NAME
from smddp.checkpoint.restore.reader import read_newest
from smddp.checkpoint.stores import StoreError, open_store
from smddp.checkpoint.stores import owner_record as owners
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.directory_hold import DirectoryHold
from smddp.checkpoint.stores.filesystem import FileSystem
from smddp.checkpoint.stores.owner_record import OWNER_NAME, LocationTakenError
from smddp.data import ElasticSampler
from smddp.errors import CheckpointError
from smddp.secret_text import MASK

NewRun = Callable[..., Any]
FilesOf = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def keeps_the_random_state() -> Iterator[None]:
    """Loading sets the generators of the whole process."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


class Training:
    """A real loop: dropout, momentum, a schedule, a shuffle, and augmentation from python's and numpy's numbers."""

    def __init__(self, directory: Path, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [5, 9])
        self.sampler = ElasticSampler(100, global_batch=10)
        self.step = 0
        self.checkpointer = Checkpointer(
            directory,
            {
                "model": self.model,
                "optimizer": self.optimizer,
                "scheduler": self.scheduler,
                "sampler": self.sampler,
            },
        )

    def train(self, steps: int) -> None:
        for _ in range(steps):
            if len(self.sampler) == 0:
                self.sampler.start_epoch(self.sampler.epoch + 1)
            indices = torch.tensor(next(iter(self.sampler)))
            inputs = torch.stack([indices, indices**2, indices % 7, indices % 3], dim=1) / 100.0
            inputs = inputs + random.random() + np.random.rand() + torch.randn(4)
            self.optimizer.zero_grad()
            self.model(inputs).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.sampler.advance()
            self.step += 1

    def everything(self) -> bytes:
        weights = b"".join(value.numpy().tobytes() for value in self.model.state_dict().values())
        draws = (random.random(), np.random.rand(), torch.rand(1).item())
        return weights + repr((self.step, self.scheduler.get_last_lr(), self.sampler.state_dict(), draws)).encode()


@pytest.mark.slow
def test_a_resumed_run_ends_bit_identical_to_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = Training(tmp_path / "unused", seed=1)
    undisturbed.train(25)
    expected = undisturbed.everything()

    first = Training(tmp_path / "checkpoints", seed=1)
    first.train(6)
    first.checkpointer.save(first.step, epoch=first.sampler.epoch)
    first.train(3)  # lost, and taken while the checkpoint is written
    first.checkpointer.close()
    for life, steps in enumerate([7, 12]):
        resumed = Training(tmp_path / "checkpoints", seed=100 + life)
        manifest = resumed.checkpointer.load()
        assert manifest is not None
        resumed.step = manifest.step
        resumed.train(steps)
        resumed.checkpointer.save(resumed.step, epoch=resumed.sampler.epoch)
        resumed.train(life)  # while it is saved
        resumed.checkpointer.wait()
    assert resumed.step == 26

    last = Training(tmp_path / "checkpoints", seed=7)
    manifest = last.checkpointer.load()
    assert manifest is not None
    assert (manifest.step, manifest.epoch) == (25, 2)
    last.step = manifest.step
    assert last.everything() == expected


def test_saving_draws_no_random_numbers(new_run: NewRun) -> None:
    run = new_run()
    before = random.getstate(), torch.get_rng_state()
    run.save(1)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_numpys_numbers_go_on_in_the_middle_of_a_pair(new_run: NewRun) -> None:
    run = new_run()
    np.random.set_state(np.random.MT19937(3).state)
    np.random.standard_normal()  # leaves half a pair of normal numbers behind
    run.save(1)
    expected = np.random.standard_normal(3).tolist()
    run.load()
    assert np.random.standard_normal(3).tolist() == expected


def test_without_any_checkpoint_there_is_nothing_to_load(new_run: NewRun, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert new_run().load() is None
    (record,) = caplog.records
    assert "there is no checkpoint in" in record.getMessage()


def test_the_manifest_tells_what_was_saved(new_run: NewRun) -> None:
    run = new_run(hyperparameters={"lr": 0.1, "sizes": (3, 4)})
    run.checkpointer.save(7, epoch=2, position=640, metrics={"loss": torch.tensor(0.5), "accuracy": 1})
    report = run.checkpointer.wait()
    manifest = run.checkpointer.load()
    assert isinstance(manifest, Manifest)
    assert (manifest.step, manifest.epoch, manifest.position, manifest.world_size) == (7, 2, 640, 1)
    assert manifest.metrics == {"loss": 0.5, "accuracy": 1.0}
    assert manifest.hyperparameters == {"lr": 0.1, "sizes": [3, 4]}
    assert manifest.torch_version == torch.__version__
    path = run.directory / "step-000000000007"
    assert sorted(path.iterdir()) == [path / manifest.directory, path / MANIFEST_NAME]
    assert set(manifest.files) == {each.name for each in (path / manifest.directory).iterdir()}
    assert report.size == manifest.size == sum(each.stat().st_size for each in (path / manifest.directory).iterdir())


def test_the_newest_is_loaded_and_the_last_few_are_kept(new_run: NewRun) -> None:
    run = new_run(last=2)
    for step in (3, 20, 100):
        run.save(step)
    assert new_run().load() == 100
    assert [info.step for info in list_checkpoints(run.directory)] == [20, 100]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "a flipped bit": (lambda _, files: flip_a_bit(files / "model.safetensors"), "model.safetensors was changed"),
    "a missing file": (lambda _, files: (files / "ema.safetensors").unlink(), "ema.safetensors is missing"),
    "a truncated file": (lambda _, files: os.truncate(files / STATE_NAME, 5), "state.json has 5 bytes instead of"),
    "a damaged manifest": (lambda path, _: flip_a_bit(path / MANIFEST_NAME), "manifest.json"),
    "an empty manifest": (lambda path, _: os.truncate(path / MANIFEST_NAME, 0), "manifest.json is not JSON"),
    "a pipe for a file": (
        lambda _, files: ((files / STATE_NAME).unlink(), os.mkfifo(files / STATE_NAME)),
        "state.json is missing",
    ),
    "a manifest of another step": (
        lambda path, _: (path / MANIFEST_NAME).write_bytes(
            (path.parent / "step-000000000001" / MANIFEST_NAME).read_bytes()
        ),
        "is that of step 1",
    ),
    "no manifest": (lambda path, _: (path / MANIFEST_NAME).unlink(), "its save was interrupted"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_newest_is_skipped_with_the_reason(
    damage: Callable[[Path, Path], object],
    reason: str,
    new_run: NewRun,
    files_of: FilesOf,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = new_run()
    run.save(1)
    path = run.save(2)
    damage(path, files_of(path))
    with caplog.at_level(logging.WARNING):
        assert new_run().load() == 1
    (record,) = caplog.records
    assert "step-000000000002" in record.getMessage()
    assert reason in record.getMessage()
    first, second = list_checkpoints(run.directory)
    assert first.valid
    assert not second.valid
    assert reason in second.reason


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_the_next_life_replaces_an_invalid_one_of_the_same_step(
    damage: Callable[[Path, Path], object],
    reason: str,
    new_run: NewRun,
    files_of: FilesOf,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = new_run()
    run.save(1)
    path = run.save(2)
    damage(path, files_of(path))
    resumed = new_run()
    assert resumed.load() == 1
    resumed.save(2)
    assert reason in caplog.text
    assert new_run().load() == 2
    resumed.save(3)
    assert {each for each in path.iterdir() if each.is_dir()} == {files_of(path)}


def test_with_only_damaged_ones_it_does_not_start_from_scratch(new_run: NewRun, files_of: FilesOf) -> None:
    run = new_run()
    for step in (1, 2):
        flip_a_bit(files_of(run.save(step)) / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"none is valid \(step-000000000002: .*; step-000000000001: .*start anew"
    ):
        new_run().load()


def test_a_first_save_that_was_interrupted_is_no_checkpoint(new_run: NewRun, caplog: pytest.LogCaptureFixture) -> None:
    run = new_run()
    (run.save(5) / MANIFEST_NAME).unlink()
    assert new_run().load() is None
    assert "skipped the checkpoint" in caplog.text
    assert [info.status for info in list_checkpoints(run.directory)] == ["incomplete"]


def rewrite_as_newer_format(path: Path) -> None:
    import xxhash

    content = {**json.loads((path / MANIFEST_NAME).read_bytes()), "format": 3, "xxh3_128": "0" * 32}
    digest = xxhash.xxh3_128_hexdigest(json.dumps(content).encode())
    (path / MANIFEST_NAME).write_text(json.dumps({**content, "xxh3_128": digest}))


def test_one_of_a_newer_format_is_neither_passed_over_nor_replaced_nor_removed(new_run: NewRun) -> None:
    run = new_run(last=1)
    run.save(1)
    newer = run.save(2)
    rewrite_as_newer_format(newer)
    assert [info.status for info in list_checkpoints(run.directory)] == ["newer"]
    with pytest.raises(CheckpointError, match=r"cannot read .*step-000000000002: its format is version 3"):
        run.load()
    again = new_run(last=1)
    with pytest.raises(CheckpointError, match="will not replace"):
        again.save(2)
    again.save(3)
    assert [(info.step, info.status) for info in list_checkpoints(run.directory)] == [(2, "newer"), (3, "valid")]


def test_saving_the_same_step_again_replaces_it(new_run: NewRun, files_of: FilesOf) -> None:
    run = new_run()
    first = files_of(run.save(4))
    path = run.save(4)
    assert files_of(path) != first
    assert not first.exists()
    assert new_run().load() == 4


def test_the_checkpoint_that_a_run_goes_on_from_may_be_saved_again(new_run: NewRun, files_of: FilesOf) -> None:
    first = files_of(new_run().save(4))
    resumed = new_run()
    assert resumed.load() == 4
    path = resumed.save(4)
    assert files_of(path) != first
    assert not first.exists()
    assert new_run().load() == 4


def test_one_that_another_run_saved_meanwhile_is_never_replaced(new_run: NewRun) -> None:
    first, second = new_run(), new_run()
    assert first.load() == second.load() is None
    path = second.save(4)
    before = {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}
    with pytest.raises(CheckpointError, match=r"which another run saved at .*two runs share the location"):
        first.save(4)
    assert {each: each.read_bytes() for each in path.rglob("*") if each.is_file()} == before


def test_what_others_put_there_is_ignored_and_left_alone(new_run: NewRun, files_of: FilesOf) -> None:
    run = new_run(last=1)
    directory = run.directory
    directory.mkdir()
    others = [
        directory / "notes.txt",
        directory / "step-12" / "manifest.json",
        directory / "step-0000000000100",
        directory / "step-000000000009",  # a file, not a directory
        files_of(run.save(1)) / "model.safetensors.sagemaker-uploading",
        files_of(directory / "step-000000000001") / "notes.txt",
        directory / "step-000000000001" / "notes.txt",
        run.directory / "tensorboard" / "events",
    ]
    for path in others:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    assert new_run().load() == 1
    run.save(2)
    assert new_run().load() == 2
    assert [path.read_text() for path in others] == ["mine"] * len(others)
    left = {each for each in (directory / "step-000000000001").rglob("*") if each.is_file()}
    assert left < set(others)


def test_after_falling_back_the_new_checkpoint_is_never_the_one_removed(new_run: NewRun, files_of: FilesOf) -> None:
    first = new_run()
    first.save(10)
    flip_a_bit(files_of(first.save(20)) / "model.safetensors")
    run = new_run(last=1)
    assert run.load() == 10
    run.save(15)
    assert new_run().load() == 15
    run.save(20)
    assert new_run().load() == 20
    assert [(info.step, info.valid) for info in list_checkpoints(run.directory)] == [(20, True)]


def test_unfinished_saves_of_the_past_are_cleared_away(new_run: NewRun, files_of: FilesOf) -> None:
    run = new_run()
    (run.save(1) / MANIFEST_NAME).unlink()
    path = run.save(2)
    (path / MANIFEST_NAME).rename(files_of(path) / "manifest.json.smddp-partial")
    new_run().save(3)
    assert [each.name for each in run.directory.iterdir() if each.name != OWNER_NAME] == ["step-000000000003"]


class Holder:
    """Holds whatever it is given."""

    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> object:
        return self.state

    def load_state_dict(self, state: object) -> None:
        self.state = state


def test_what_cannot_be_saved_is_named_at_once_and_nothing_is_written(tmp_path: Path) -> None:
    holder = Holder({"state": {3: {"foo": {1}}}})
    checkpointer = Checkpointer(tmp_path / "c", {"optimizer": holder})
    with pytest.raises(CheckpointError, match=r"^optimizer\.state\.3\.foo is a set"):
        checkpointer.save(1)
    assert checkpointer.wait() is None
    assert not (tmp_path / "c").exists()
    holder.state = 1
    checkpointer.save(2)
    assert checkpointer.wait() is not None


def test_a_state_whose_header_nothing_could_read_is_refused_at_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path / "c", {"model": Holder({f"layer.{n}": torch.ones(1) for n in range(99)})})
    monkeypatch.setattr("smddp.checkpoint.format.tensors.LARGEST_HEADER", 5000)
    with pytest.raises(
        CheckpointError, match=r"99 tensors, .* need a header of .* divide the state into several parts"
    ):
        checkpointer.save(1)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("failing", ["make_directory", "create", "write", "sync", "sync_directory", "link"])
def test_a_full_disk_is_reported_and_leaves_the_last_one_and_no_rubbish(
    failing: str, new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    run.save(1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, failing, full)
        with pytest.raises(
            CheckpointError, match=r"could not save .*No space left.*earlier ones are as they were"
        ) as e:
            run.save(2)
    assert isinstance(e.value.__cause__, StoreError)
    assert new_run().load() == 1
    run.save(3)
    assert [info.step for info in list_checkpoints(run.directory)] == [1, 3]
    run.checkpointer.close()
    assert sorted(each.name for each in run.directory.iterdir()) == ["step-000000000001", "step-000000000003"]


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checkpointer = Checkpointer(tmp_path / "file" / "checkpoints", {"model": Holder({})})
    checkpointer.save(1)
    with pytest.raises(CheckpointError, match=r"could not save the checkpoint .*Not a directory"):
        checkpointer.wait()
    with pytest.raises(CheckpointError, match="Not a directory"):
        checkpointer.load()


def test_a_closed_one_saves_nothing_any_more(new_run: NewRun) -> None:
    run = new_run()
    run.save(1)
    run.checkpointer.close()
    with pytest.raises(CheckpointError, match="closed: make another"):
        run.checkpointer.save(2)


def test_once_it_is_durable_a_listing_that_fails_does_not_fail_the_save(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run()

    def denied(*_: object) -> list[int]:
        raise StoreError("503 SlowDown", transient=True)

    monkeypatch.setattr(DirectoryStore, "steps", denied)
    run.save(1)
    assert "could not look for checkpoints to remove: 503 SlowDown" in caplog.text
    assert run.checkpointer.last_report is not None


def test_one_that_may_yet_be_committed_keeps_its_files(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run()
    commit = DirectoryStore.commit
    late: list[Callable[[], None]] = []

    def time_out(store: DirectoryStore, *arguments: Any, **options: Any) -> None:
        late.append(lambda: commit(store, *arguments, **options))
        raise StoreError("no answer in time", transient=True)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "commit", time_out)
        with pytest.raises(CheckpointError, match="no answer in time"):
            run.save(1)
    late.pop()()  # the server has it after all
    assert new_run().load() == 1


def test_a_prune_that_fails_does_not_fail_the_save(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(last=1)
    run.save(1)

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(FileSystem, "rmdir", denied)
        run.save(2)
    assert "could not remove" in caplog.text
    assert new_run().load() == 2
    run.save(3)
    assert [info.step for info in list_checkpoints(run.directory)] == [3]


def saved(directory: Path, state: dict[str, Any], **options: Any) -> None:
    """Save a step of another life."""
    with Checkpointer(directory, state, **options) as checkpointer:
        checkpointer.save(1)


def test_a_checkpoint_of_another_model_says_what_differs_and_loads_nothing(tmp_path: Path) -> None:
    other = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    saved(tmp_path, {"counter": Holder(1), "model": other})
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    counter = Holder(0)
    with pytest.raises(
        CheckpointError,
        match=r"does not fit this run's model: it is of another model: 2 missing: 2.weight, 2.bias; "
        r"2 unexpected: 1.weight, 1.bias; "
        r"2 misshapen: 0.weight \(\[3, 2\] instead of \[4, 2\]\), 0.bias \(\[3\] instead of \[4\]\). Nothing was",
    ):
        Checkpointer(tmp_path, {"counter": counter, "model": model}).load()
    assert counter.state == 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_part_that_does_not_take_its_state_is_named(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    saved(tmp_path, {"optimizer": torch.optim.SGD(model.parameters(), lr=1.0)})
    with pytest.raises(CheckpointError, match=r"step 1 does not fit this run's optimizer: it has groups of"):
        Checkpointer(tmp_path, {"optimizer": torch.optim.SGD([model.weight], lr=1.0)}).load()


def test_other_hyperparameters_than_before_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    old = {"lr": 0.1, "epochs": 3, "clip": None, "api_key": "one"}
    new = {"lr": 0.2, "epochs": 3, "seed": 1, "api_key": "two"}
    saved(tmp_path, {"model": Holder(1)}, hyperparameters=old)
    caplog.set_level(logging.INFO)
    Checkpointer(tmp_path, {"model": Holder(0)}, hyperparameters=new).load()
    assert caplog.messages[-1] == (
        "hyperparameters changed since this checkpoint: lr=0.2 (was 0.1), clip=not given (was null), "
        f'api_key="{MASK}" (was "{MASK}"), seed=1 (was not given)'
    )
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("value", [{1}, float("nan"), object()])
def test_refuses_hyperparameters_that_are_no_json(value: object, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the hyperparameters are not JSON values"):
        Checkpointer(tmp_path, {}, hyperparameters={"x": value})


def test_a_part_that_the_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    saved(tmp_path, {"model": Holder(1), "optimizer": Holder(2)})
    with pytest.raises(CheckpointError, match="has no scaler, only model, optimizer"):
        Checkpointer(tmp_path, {"model": Holder(0), "scaler": Holder(0)}).load()


def test_a_part_that_is_not_asked_for_is_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path, {"model": Holder(1), "optimizer": Holder(2)})
    holder = Holder(0)
    Checkpointer(tmp_path, {"model": holder}).load()
    assert holder.state == 1
    assert "also has optimizer: not used" in caplog.text


@pytest.mark.parametrize("name", ["rng", "ranks", "", "a/b", "..", "a.b", "x" * 65, "model-00001-of-00002"])
def test_refuses_a_name_that_is_no_file_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name a part"):
        Checkpointer(tmp_path, {name: Holder(1)})


def test_refuses_a_part_without_a_state(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'model' is an OrderedDict: it has no state_dict"):
        Checkpointer(tmp_path, {"model": OrderedDict()})  # type: ignore[dict-item]


@pytest.mark.parametrize("values", [{"step": -1}, {"step": 10**12}, {"epoch": -1}, {"position": -1}])
def test_refuses_a_number_out_of_range_and_names_no_other(values: dict[str, int], tmp_path: Path) -> None:
    ((name, value),) = values.items()
    with pytest.raises(ValueError, match=f"^{name} is {value}: give a whole number (from|of) 0[^:]*$"):
        Checkpointer(tmp_path, {}).save(**{"step": 0, **values})


@pytest.mark.parametrize("step", [1.5, 2.0, "3", None, True, torch.tensor(True)])
def test_refuses_a_step_that_is_no_whole_number(step: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"step is {re.escape(repr(step))}: give a whole number"):
        Checkpointer(tmp_path, {}).save(step)


def test_a_value_of_a_rank_that_cannot_be_saved_is_named_by_the_script_s_names(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^sampler\.seen is a set"):
        Checkpointer(tmp_path / "c", {}, per_rank={"sampler": Holder({"seen": {1}})}).save(1)


def test_a_metric_that_is_no_number_is_refused_before_anything_is_written(new_run: NewRun) -> None:
    run = new_run()
    with pytest.raises(ValueError, match="the metric 'loss' is 'low': give a number"):
        run.checkpointer.save(1, metrics={"loss": "low"})
    assert not run.directory.exists()


def test_loading_unpickles_nothing(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run()
    run.save(1)

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("a pickle was opened")

    for owner, name in (pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load"):
        monkeypatch.setattr(owner, name, forbidden)
    assert run.load() == 1


def outcome_elsewhere(action: Callable[[], object]) -> str:
    """Do something in another process, and give the CheckpointError that it ends in; nothing if it has none."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            action()
            os._exit(0)
        except CheckpointError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    _, status = os.waitpid(process, 0)
    assert (status == 0) == (told == "")
    return told


@pytest.mark.parametrize("begin", [lambda run: run.load(), lambda run: run.save(3)], ids=["load", "save"])
def test_a_second_run_is_refused_at_its_start_and_the_first_goes_on(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, begin: Callable[[Any], object]
) -> None:
    monkeypatch.setattr(owners, "PATIENCE_SECONDS", 0.1)
    first = new_run(last=1)
    first.save(10)
    told = outcome_elsewhere(lambda: begin(new_run(last=1)))
    assert re.search(rf"the run \w{{12}} \(process {os.getpid()} on .*, since .*\) saves its checkpoints in", told)
    first.save(20)
    assert [(info.step, info.valid) for info in list_checkpoints(first.directory)] == [(20, True)]
    assert outcome_elsewhere(lambda: read_newest(open_store(first.directory))) == "", "who reads may"
    first.checkpointer.close()
    assert outcome_elsewhere(lambda: begin(new_run())) == ""


def test_a_run_whose_place_was_taken_commits_and_removes_nothing(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run(last=1)
    run.save(10)

    def taken(_: object) -> None:
        raise LocationTakenError(str(run.directory), None)

    monkeypatch.setattr(DirectoryHold, "check", taken)
    with pytest.raises(CheckpointError, match="another run saves its checkpoints in"):
        run.save(20)
    assert [(info.step, info.valid) for info in list_checkpoints(run.directory)] == [(10, True)]


def test_a_place_that_is_lost_after_a_commit_is_not_pruned(new_run: NewRun, monkeypatch: pytest.MonkeyPatch) -> None:
    run = new_run(last=1)
    run.save(10)
    checks: list[object] = []

    def taken(hold: object) -> None:
        checks.append(hold)
        if len(checks) == 2:
            raise LocationTakenError(str(run.directory), None)

    monkeypatch.setattr(DirectoryHold, "check", taken)
    run.save(20)
    assert [info.step for info in list_checkpoints(run.directory)] == [10, 20]


def test_an_exception_in_training_leaves_the_place_to_the_next_run(new_run: NewRun) -> None:
    run = new_run()
    with pytest.raises(ZeroDivisionError), run.checkpointer:
        run.save(10)
        raise ZeroDivisionError
    assert outcome_elsewhere(lambda: new_run().save(20)) == ""
