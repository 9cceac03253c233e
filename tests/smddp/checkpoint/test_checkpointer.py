"""A run goes on from its newest valid checkpoint exactly where it was, or says why it cannot."""

from __future__ import annotations

import json
import logging
import os
import pickle
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from smddp.checkpoint import Checkpointer, Manifest, list_checkpoints
from smddp.checkpoint.manifest import MANIFEST_NAME, STATE_NAME
from smddp.data import ElasticSampler
from smddp.errors import CheckpointError

NewRun = Callable[..., Any]


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


def test_a_resumed_run_ends_bit_identical_to_an_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = Training(tmp_path / "unused", seed=1)
    undisturbed.train(25)
    expected = undisturbed.everything()

    first = Training(tmp_path / "checkpoints", seed=1)
    first.train(6)
    first.checkpointer.save(first.step, epoch=first.sampler.epoch)
    first.train(3)  # lost
    for life, steps in enumerate([7, 12]):
        resumed = Training(tmp_path / "checkpoints", seed=100 + life)
        manifest = resumed.checkpointer.load()
        assert manifest is not None
        resumed.step = manifest.step
        resumed.train(steps)
        resumed.checkpointer.save(resumed.step, epoch=resumed.sampler.epoch)
        resumed.train(life)
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
    run = new_run()
    path = run.checkpointer.save(7, epoch=2, metrics={"loss": torch.tensor(0.5), "accuracy": 1})
    assert path == run.directory / "step-000000000007"
    manifest = run.checkpointer.load()
    assert isinstance(manifest, Manifest)
    assert (manifest.step, manifest.epoch, manifest.world_size) == (7, 2, 1)
    assert manifest.metrics == {"loss": 0.5, "accuracy": 1.0}
    assert manifest.torch_version == torch.__version__
    assert set(manifest.files) | {MANIFEST_NAME} == {each.name for each in path.iterdir()}


def test_the_newest_is_loaded_and_the_last_few_are_kept(new_run: NewRun) -> None:
    run = new_run(keep_last=2)
    for step in (3, 20, 100):
        run.save(step)
    assert new_run().load() == 100
    assert [info.step for info in list_checkpoints(run.directory)] == [20, 100]


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "a flipped bit": (lambda path: flip_a_bit(path / "model.safetensors"), "model.safetensors was changed"),
    "a missing file": (lambda path: (path / "ema.safetensors").unlink(), "ema.safetensors is missing"),
    "a truncated file": (lambda path: os.truncate(path / STATE_NAME, 5), "state.json has 5 bytes instead of"),
    "a damaged manifest": (lambda path: flip_a_bit(path / MANIFEST_NAME), "manifest.json"),
    "an empty manifest": (lambda path: os.truncate(path / MANIFEST_NAME, 0), "manifest.json is not JSON"),
    "a pipe for a file": (
        lambda path: ((path / STATE_NAME).unlink(), os.mkfifo(path / STATE_NAME))[1],
        "state.json is missing",
    ),
    "a manifest of another step": (
        lambda path: (path / MANIFEST_NAME).write_bytes(
            (path.parent / "step-000000000001" / MANIFEST_NAME).read_bytes()
        ),
        "is that of step 1",
    ),
    "no manifest": (lambda path: (path / MANIFEST_NAME).unlink(), "its save was interrupted"),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_newest_is_skipped_with_the_reason(
    damage: Callable[[Path], None], reason: str, new_run: NewRun, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run()
    run.save(1)
    damage(run.save(2))
    with caplog.at_level(logging.WARNING):
        assert new_run().load() == 1
    (record,) = caplog.records
    assert "step-000000000002" in record.getMessage()
    assert reason in record.getMessage()
    first, second = list_checkpoints(run.directory)
    assert first.valid
    assert not second.valid
    assert reason in second.reason


def test_with_only_damaged_ones_it_does_not_start_from_scratch(new_run: NewRun) -> None:
    run = new_run()
    for step in (1, 2):
        flip_a_bit(run.save(step) / "model.safetensors")
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

    content = {**json.loads((path / MANIFEST_NAME).read_bytes()), "format": 2, "xxh3_128": "0" * 32}
    digest = xxhash.xxh3_128_hexdigest(json.dumps(content).encode())
    (path / MANIFEST_NAME).write_text(json.dumps({**content, "xxh3_128": digest}))


def test_one_of_a_newer_format_is_neither_passed_over_nor_replaced_nor_removed(new_run: NewRun) -> None:
    run = new_run(keep_last=1)
    run.save(1)
    newer = run.save(2)
    rewrite_as_newer_format(newer)
    assert [info.status for info in list_checkpoints(run.directory)] == ["newer"]
    with pytest.raises(CheckpointError, match=r"cannot read .*step-000000000002: its format is version 2"):
        run.load()
    with pytest.raises(CheckpointError, match="will not replace"):
        run.save(2)
    run.save(3)
    assert [(info.step, info.status) for info in list_checkpoints(run.directory)] == [(2, "newer"), (3, "valid")]


def test_a_valid_checkpoint_of_the_same_step_is_kept(new_run: NewRun, caplog: pytest.LogCaptureFixture) -> None:
    run = new_run()
    path = run.save(4)
    before = {each.name: (each.stat().st_mtime_ns, each.read_bytes()) for each in path.iterdir()}
    run.parts["model"].number = 5
    with caplog.at_level(logging.INFO):
        assert run.checkpointer.save(4) == path
    assert "which is there already" in caplog.text
    assert {each.name: (each.stat().st_mtime_ns, each.read_bytes()) for each in path.iterdir()} == before
    assert run.load() == 4


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES)
def test_an_invalid_one_of_the_same_step_is_replaced(
    damage: Callable[[Path], None], reason: str, new_run: NewRun, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run()
    run.save(1)
    path = run.save(2)
    (path / "scheduler.safetensors").write_text("of another attempt")
    damage(path)
    run.save(2)
    assert reason in caplog.text
    assert new_run().load() == 2
    assert not (path / "scheduler.safetensors").exists()


def test_what_others_put_there_is_ignored_and_left_alone(new_run: NewRun) -> None:
    run = new_run(keep_last=1)
    directory = run.directory
    directory.mkdir()
    others = [
        directory / "notes.txt",
        directory / "step-12" / "manifest.json",
        directory / "step-0000000000100",
        directory / "step-000000000009",  # a file, not a directory
        run.save(1) / "model.safetensors.sagemaker-uploading",
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
    assert sorted(each.name for each in (directory / "step-000000000001").iterdir()) == [
        "model.safetensors.sagemaker-uploading",
        "notes.txt",
    ]


def test_after_falling_back_the_new_checkpoint_is_never_the_one_removed(new_run: NewRun) -> None:
    run = new_run(keep_last=1)
    run.save(10)
    flip_a_bit(run.save(20) / "model.safetensors")
    run.save(15)
    assert new_run().load() == 15
    run.save(20)
    assert new_run().load() == 20
    assert [(info.step, info.valid) for info in list_checkpoints(run.directory)] == [(20, True)]


def test_unfinished_saves_of_the_past_are_cleared_away(new_run: NewRun) -> None:
    run = new_run()
    (run.save(1) / MANIFEST_NAME).unlink()
    (run.save(2) / MANIFEST_NAME).rename(run.directory / "step-000000000002" / "manifest.json.smddp-partial")
    run.save(3)
    assert [each.name for each in run.directory.iterdir()] == ["step-000000000003"]


class Holder:
    """Holds whatever it is given."""

    def __init__(self, state: object) -> None:
        self.state = state

    def state_dict(self) -> object:
        return self.state

    def load_state_dict(self, state: object) -> None:
        self.state = state


def test_what_cannot_be_saved_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "c", {"optimizer": Holder({"state": {3: {"foo": {1}}}})})
    with pytest.raises(CheckpointError, match=r"^optimizer\.state\.3\.foo is a builtins\.set"):
        checkpointer.save(1)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("owner, failing", [(os, "fsync"), (Path, "replace"), (Path, "open"), (Path, "mkdir")])
def test_a_full_disk_is_reported_and_leaves_the_last_one_and_no_rubbish(
    owner: object, failing: str, new_run: NewRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run()
    run.save(1)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if failing == "open":
            real = Path.open
            patch.setattr(Path, "open", lambda path, mode="r": full() if "w" in mode else real(path, mode))
        else:
            patch.setattr(owner, failing, full)
        with pytest.raises(CheckpointError, match=r"could not write .*No space left.*earlier ones are as they were"):
            run.save(2)
    assert new_run().load() == 1
    run.save(3)
    assert [info.step for info in list_checkpoints(run.directory)] == [1, 3]
    assert [each.name for each in run.directory.iterdir() if each.name == "step-000000000002"] == []


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    checkpointer = Checkpointer(tmp_path / "file" / "checkpoints", {"model": Holder({})})
    with pytest.raises(CheckpointError, match="could not write the checkpoint"):
        checkpointer.save(1)
    with pytest.raises(CheckpointError, match="NotADirectoryError"):
        checkpointer.load()


def test_a_prune_that_fails_does_not_fail_the_save(
    new_run: NewRun, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(keep_last=1)
    run.save(1)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", denied)
        run.save(2)
    assert "could not remove" in caplog.text
    assert new_run().load() == 2
    run.save(3)
    assert [info.step for info in list_checkpoints(run.directory)] == [3]


def test_a_checkpoint_of_another_model_says_which_part_does_not_fit(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"model": torch.nn.Linear(2, 3)}).save(1)
    with pytest.raises(CheckpointError, match=r"step 1 does not fit this run's model: RuntimeError:[^$]*size mismatch"):
        Checkpointer(tmp_path, {"model": torch.nn.Linear(2, 4)}).load()


def test_a_part_that_the_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    Checkpointer(tmp_path, {"model": Holder(1), "optimizer": Holder(2)}).save(1)
    with pytest.raises(CheckpointError, match="has no scaler, only model, optimizer"):
        Checkpointer(tmp_path, {"model": Holder(0), "scaler": Holder(0)}).load()


def test_a_part_that_is_not_asked_for_is_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    Checkpointer(tmp_path, {"model": Holder(1), "optimizer": Holder(2)}).save(1)
    holder = Holder(0)
    Checkpointer(tmp_path, {"model": holder}).load()
    assert holder.state == 1
    assert "also has optimizer: not used" in caplog.text


@pytest.mark.parametrize("name", ["rng", "", "a/b", "..", "a.b", "x" * 65])
def test_refuses_a_name_that_is_no_file_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot name a part"):
        Checkpointer(tmp_path, {name: Holder(1)})


def test_refuses_a_part_without_a_state(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="'model' is a dict: it has no state_dict"):
        Checkpointer(tmp_path, {"model": {}})  # type: ignore[dict-item]


def test_refuses_to_keep_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="keep_last is 0"):
        Checkpointer(tmp_path, {}, keep_last=0)


@pytest.mark.parametrize(("step", "epoch"), [(-1, 0), (10**12, 0), (0, -1)])
def test_refuses_an_impossible_step(step: int, epoch: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="steps go from 0"):
        Checkpointer(tmp_path, {}).save(step, epoch=epoch)


def test_a_metric_that_is_no_number_is_refused_before_anything_is_written(new_run: NewRun) -> None:
    run = new_run()
    with pytest.raises(CheckpointError, match="could not convert string to float: 'low'"):
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
