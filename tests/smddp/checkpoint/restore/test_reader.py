"""What is read is what was saved, the newest that is whole; what is passed over is said with its reason."""

from __future__ import annotations

import errno
import html
import json
import logging
import random
import shutil
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from smddp.checkpoint.format.manifest import FileRecord
from smddp.checkpoint.restore.listing import CheckpointList, inspect, inspect_each_alone, list_checkpoints
from smddp.checkpoint.restore.reader import read_checkpoint, read_newest
from smddp.checkpoint.run_state import restore_random_state
from smddp.checkpoint.stores import Store, StoreError, open_store
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.checkpoint.stores.filesystem import FileSystem
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.by_hand import RUN, plain, write_checkpoint

FORMAT_1 = Path(__file__).parents[1] / "fixtures" / "format-1"


def state_of(step: int) -> dict[str, Any]:
    """A state all of whose values follow from the step."""
    weights = OrderedDict((f"layer.{index}.weight", torch.arange(100.0) + step + index) for index in range(5))
    return {
        "model": weights | {"empty": torch.empty(0, 3), "scalar": torch.tensor(step), "half": torch.ones(3).half()},
        "optimizer": {"state": {0: {"exp_avg": torch.full((7, 3), float(step))}}, "lr": 0.1 / (step + 1)},
        "clock": {"number": step, "shape": (1, None)},
    }


def assert_same(left: Any, right: Any) -> None:
    """Equal to the bit and the type."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (left, plain(right))))
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, (list, tuple)):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left == right


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "checkpoints")


def attempt(store: Store, step: int) -> Path:
    """Give the directory with the files of a checkpoint."""
    return Path(store.path(step)) / f"{RUN}-0001"


@pytest.mark.parametrize("writers", [1, 2, 3])
def test_reads_what_was_written_by_any_number_of_writers(store: Store, writers: int) -> None:
    written = write_checkpoint(store, 5, state_of(5), writers=writers, position=96, hyperparameters={"lr": 0.1})
    loaded = read_newest(store)
    assert loaded is not None
    assert loaded.manifest == written
    assert sorted(loaded.tensors) == sorted(loaded.skeletons) == ["clock", "model", "optimizer"]
    for part, state in state_of(5).items():
        assert_same(loaded.unflatten(part), state)


def test_each_tensor_has_a_storage_of_its_own(store: Store, tmp_path: Path) -> None:
    write_checkpoint(store, 1, state_of(1))
    tensors = read_checkpoint(store, 1).tensors["model"]
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors.values())
    tensors["layer.0.weight"].fill_(-1)
    assert_same(tensors["layer.1.weight"], state_of(1)["model"]["layer.1.weight"])
    torch.save(tensors["layer.0.weight"], tmp_path / "one.pt")
    assert (tmp_path / "one.pt").stat().st_size < 3000


def test_tensors_outlive_the_rest(store: Store) -> None:
    write_checkpoint(store, 1, state_of(1))
    tensor = read_checkpoint(store, 1).tensors["model"]["layer.3.weight"]
    assert_same(tensor, state_of(1)["model"]["layer.3.weight"])


def test_tensors_across_spans_and_blocks_come_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectoryStore, "read_size", 100)
    monkeypatch.setattr("smddp.checkpoint.restore.verified._SPAN", 1000)
    write_checkpoint(store, 1, state_of(1))
    loaded = read_checkpoint(store, 1)
    for part, state in state_of(1).items():
        assert_same(loaded.unflatten(part), state)
    assert inspect(store, 1).valid


def test_a_header_of_any_length_is_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(store, 1, state_of(1))
    for size in (8, 9, 64, 10**6):
        monkeypatch.setattr("smddp.checkpoint.restore.verified._FIRST_READ", size)
        assert_same(read_checkpoint(store, 1).unflatten("model"), state_of(1)["model"])


def test_only_the_parts_asked_for_are_read(store: Store) -> None:
    write_checkpoint(store, 1, state_of(1))
    (damaged,) = attempt(store, 1).glob("optimizer.safetensors")
    damaged.write_bytes(bytes(damaged.stat().st_size))
    loaded = read_newest(store, parts=["model"])
    assert loaded is not None
    assert list(loaded.tensors) == ["model"]
    assert_same(loaded.unflatten("model"), state_of(1)["model"])
    for part in ("optimizer", "ema"):
        with pytest.raises(CheckpointError, match=f"step 1 has no '{part}', only model"):
            loaded.unflatten(part)
    with pytest.raises(CheckpointError, match=r"none is valid .*optimizer.safetensors was changed"):
        read_newest(store)


def test_a_checkpoint_of_format_1_loads_as_it_did(store: Store) -> None:
    store = open_store(FORMAT_1 / "checkpoints")
    expected = json.loads((FORMAT_1 / "expected.json").read_text())
    loaded = read_newest(store)
    assert loaded is not None
    assert (loaded.manifest.format, loaded.manifest.step) == (1, 3)
    assert {name: tensor.tolist() for name, tensor in loaded.unflatten("model").items()} == expected["model"]
    assert loaded.unflatten("model")._metadata["1"]["version"] == 2
    optimizer = loaded.unflatten("optimizer")
    assert optimizer["param_groups"][0]["lr"] == expected["lr"]
    found = {
        str(key): {name: tensor.tolist() for name, tensor in each.items()} for key, each in optimizer["state"].items()
    }
    assert found == expected["optimizer"]
    sampler = loaded.unflatten("sampler")
    assert sampler.pop("order").tolist() == [0, 1, 2, 3]
    assert sampler == {"version": 1, "seed": 2**63 + 1, "position": 96, "half": float("inf"), "shape": (4, None)}
    restore_random_state(loaded.unflatten("rng"), rank=0)
    drawn = {"python": random.random(), "numpy": float(np.random.rand()), "torch": float(torch.rand(()))}
    assert drawn == expected["next"]
    assert inspect(store, 3).valid


def test_damage_in_format_1_is_noticed(tmp_path: Path) -> None:
    shutil.copytree(FORMAT_1 / "checkpoints", tmp_path / "copy")
    store = open_store(tmp_path / "copy")
    for path in sorted(Path(store.path(3)).iterdir()):
        whole = path.read_bytes()
        for position in range(0, len(whole), 97):
            path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
            with pytest.raises(CheckpointError, match=path.name):
                read_checkpoint(store, 3)
            assert inspect(store, 3).status == "damaged"
        path.write_bytes(whole)
    assert inspect(store, 3).valid


def test_falls_back_past_all_that_is_not_whole_and_says_why(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(1, 6):
        write_checkpoint(store, step, state_of(step))
    (Path(store.path(5)) / "manifest.json").unlink()
    (attempt(store, 4) / "optimizer.safetensors").unlink()
    values = attempt(store, 3) / "model.safetensors"
    values.write_bytes(values.read_bytes()[:-1] + b"?")
    with caplog.at_level(logging.WARNING):
        loaded = read_newest(store)
    assert loaded is not None
    assert loaded.manifest.step == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"skipped the checkpoint {store.path(5)}: it has no manifest.json: its save was interrupted",
        f"skipped the checkpoint {store.path(4)}: optimizer.safetensors is missing",
        f"skipped the checkpoint {store.path(3)}: model.safetensors was changed: its bytes of 'half' do not match "
        "their xxh3_128",
    ]


def test_nothing_finished_is_nothing_to_load(store: Store) -> None:
    assert read_newest(store) is None
    write_checkpoint(store, 1, state_of(1))
    (Path(store.path(1)) / "manifest.json").unlink()
    assert read_newest(store) is None
    with pytest.raises(CheckpointError, match=r"000000001: it has no manifest.json: its save was interrupted"):
        read_checkpoint(store, 1)


def test_nothing_but_damage_is_an_error_that_lists_it(store: Store) -> None:
    for step in (1, 2):
        write_checkpoint(store, step, state_of(step))
        (attempt(store, step) / "state.json").write_bytes(b"{}")
    with pytest.raises(
        CheckpointError, match=r"step-000000000002: state.json has 2 .*step-000000000001: state.json has"
    ):
        read_newest(store)


def test_a_newer_format_is_not_passed_over(store: Store) -> None:
    write_checkpoint(store, 1, state_of(1))
    newer = Path(store.path(2)) / "manifest.json"
    newer.parent.mkdir()
    unsigned = json.dumps({"format": 99, "xxh3_128": "0" * 32})
    newer.write_text(unsigned.replace("0" * 32, xxhash.xxh3_128_hexdigest(unsigned.encode())))
    with pytest.raises(CheckpointError, match=r"step-000000000002: its format is version 99.*install a newer smddp"):
        read_newest(store)
    assert inspect(store, 2).status == "newer"


def test_the_manifest_of_another_step_is_damage(store: Store) -> None:
    write_checkpoint(store, 1, state_of(1))
    shutil.copytree(store.path(1), store.path(2))
    assert inspect(store, 2).reason == "its manifest.json is that of step 1"


def test_a_look_at_sizes_alone_sees_what_is_missing_and_no_more(store: Store) -> None:
    write_checkpoint(store, 1, state_of(1))
    path = attempt(store, 1) / "model.safetensors"
    size = path.stat().st_size
    path.write_bytes(bytes(size))
    assert inspect(store, 1, deep=False).valid
    assert not inspect(store, 1).valid
    path.write_bytes(bytes(size + 1))
    assert inspect(store, 1, deep=False).reason == f"model.safetensors has {size + 1} bytes instead of {size}"


def test_the_list_says_what_each_is(store: Store, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_checkpoint(store, step, state_of(step))
    (attempt(store, 2) / "model.safetensors").write_bytes(b"")
    (Path(store.path(3)) / "manifest.json").unlink()
    listed = list_checkpoints(tmp_path / "checkpoints")
    assert [(info.step, info.status, info.valid) for info in listed] == [
        (1, "valid", True),
        (2, "damaged", False),
        (3, "incomplete", False),
    ]
    assert [bool(info.reason) for info in listed] == [False, True, True]
    assert [info.manifest is None for info in listed] == [False, False, True]
    assert listed[0].path == str(tmp_path / "checkpoints" / "step-000000000001")
    assert list_checkpoints(tmp_path / "none") == []


def test_a_notebook_shows_the_list_as_a_table(store: Store, tmp_path: Path) -> None:
    for step in (1, 2):
        write_checkpoint(store, step, state_of(step))
    (Path(store.path(2)) / "manifest.json").unlink()
    listed = list_checkpoints(tmp_path / "checkpoints")
    assert isinstance(listed, CheckpointList)
    shown = listed._repr_html_()
    assert shown is not None
    first, second = shown.split("<tr>")[2:]
    assert ">valid<" in first
    assert f">incomplete: {html.escape(listed[1].reason)}<" in second
    assert first.count("<td") == second.count("<td") == shown.count("<th ")
    assert CheckpointList()._repr_html_() is None


class Broken(DirectoryStore):
    """A store that fails to read tensors."""

    error: Exception

    def read_into(self, step: int, directory: str, name: str, offset: int, memory: memoryview) -> None:
        if name.endswith(".safetensors"):
            raise self.error
        super().read_into(step, directory, name, offset, memory)


@pytest.mark.parametrize(
    "error",
    [
        StoreError("no credentials"),
        OSError(errno.EACCES, "denied"),
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EUCLEAN, "Structure needs cleaning"),
    ],
    ids=repr,
)
def test_what_cannot_be_reached_is_not_passed_over(store: Store, tmp_path: Path, error: Exception) -> None:
    for step in (1, 2):
        write_checkpoint(store, step, state_of(step))
    broken = Broken(tmp_path / "checkpoints")
    broken.error = error
    for look in (lambda: read_newest(broken), lambda: read_checkpoint(broken, 2), lambda: inspect(broken, 2)):
        with pytest.raises(type(error)) as caught:
            look()
        assert caught.value is error


def test_what_is_not_there_any_more_is_damage(store: Store, tmp_path: Path) -> None:
    write_checkpoint(store, 1, state_of(1))
    broken = Broken(tmp_path / "checkpoints")
    broken.error = OSError(errno.EISDIR, "Is a directory")
    assert inspect(broken, 1).reason == "[Errno 21] Is a directory"


def test_a_disk_that_fails_is_told_and_nothing_older_is_loaded(store: Store, tmp_path: Path) -> None:
    class Failing(FileSystem):
        def read_into(self, path: Path, offset: int, memory: memoryview) -> int:
            if "step-000000000002" in str(path) and path.suffix == ".safetensors":
                raise OSError(errno.EIO, "Input/output error")
            return super().read_into(path, offset, memory)

    for step in (1, 2):
        write_checkpoint(store, step, state_of(step))
    failing = DirectoryStore(tmp_path / "checkpoints", files=Failing())
    with pytest.raises(StoreError, match=r"cannot read .*step-000000000002/.*Input/output error; the disk or the way"):
        read_newest(failing)
    assert inspect_each_alone(failing, 2).status == "unreadable"
    assert inspect_each_alone(failing, 1).status == "valid"


def test_one_that_is_saved_again_while_it_is_read_is_read_again(store: Store, tmp_path: Path) -> None:
    write_checkpoint(store, 1, state_of(1))

    class Replaced(DirectoryStore):
        saved_again = False

        def read_into(self, step: int, directory: str, name: str, offset: int, memory: memoryview) -> None:
            if not self.saved_again:
                self.saved_again = True
                write_checkpoint(store, 1, state_of(7), attempt=2)
                shutil.rmtree(attempt(store, 1))
            super().read_into(step, directory, name, offset, memory)

    loaded = read_checkpoint(Replaced(tmp_path / "checkpoints"), 1)
    assert_same(loaded.unflatten("model"), state_of(7)["model"])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda known: known.clear(), "digests.json does not have the digests of model.safetensors"),
        (lambda known: known["model.safetensors"].update(header="0" * 32), "digests.json does not have the digests"),
        (lambda known: known["model.safetensors"]["tensors"].popitem(), "digests.json does not have the digests of"),
        (
            lambda known: known["model.safetensors"].update(tensors=renamed(known)),
            "digests.json does not have the tensors",
        ),
    ],
)
def test_digests_that_do_not_fit_the_files_are_damage(
    store: Store, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    """What only a hand could do: each file is as the manifest says."""
    manifest = write_checkpoint(store, 1, {"model": {"a": torch.ones(4), "b": torch.zeros(4)}})
    path = attempt(store, 1) / "digests.json"
    known = json.loads(path.read_bytes())
    change(known)
    data = json.dumps(known).encode()
    path.write_bytes(data)
    record = FileRecord(size=len(data), xxh3_128=xxhash.xxh3_128_hexdigest(data))
    changed = replace(manifest, files={**manifest.files, "digests.json": record})
    (Path(store.path(1)) / "manifest.json").write_bytes(changed.to_json())
    assert inspect(store, 1).reason.startswith(reason)
    with pytest.raises(CheckpointError, match=reason):
        read_checkpoint(store, 1)


def renamed(known: dict[str, Any]) -> dict[str, str]:
    return dict(zip(["a", "c"], known["model.safetensors"]["tensors"].values(), strict=True))


def test_two_files_of_a_part_may_not_hold_the_same_tensor(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    write_checkpoint(store, 1, {"a": {"x": torch.ones(2)}, "b": {"x": torch.zeros(2)}})
    monkeypatch.setattr("smddp.checkpoint.restore.verified.part_of", lambda name: "a")
    with pytest.raises(CheckpointError, match="'x' is twice among the tensors of a"):
        read_checkpoint(store, 1)


def test_a_part_that_cannot_be_put_together_is_an_error_that_names_it(store: Store) -> None:
    write_checkpoint(store, 1, state_of(1))
    loaded = read_checkpoint(store, 1)
    for skeleton in ({"$": "tensor", "name": "none"}, {"$": "tuple"}, {"$": "float", "value": []}):
        broken = replace(loaded, skeletons={**loaded.skeletons, "model": skeleton})
        with pytest.raises(CheckpointError, match="'model' of the checkpoint of step 1 cannot be put together"):
            broken.unflatten("model")


def test_a_state_that_no_flatten_gave_is_told_and_no_attribute_error(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    write_checkpoint(store, 1, {"model": {"a": 1}})
    loaded = replace(read_checkpoint(store, 1), skeletons={"model": {"$": "dict", "items": [], "metadata": 1}})
    with pytest.raises(CheckpointError, match="'model' of the checkpoint of step 1 cannot be put together"):
        loaded.unflatten("model")
