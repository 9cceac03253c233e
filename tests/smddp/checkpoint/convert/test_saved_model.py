import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from smddp.checkpoint.convert import saved_model
from smddp.checkpoint.convert.saved_model import write_safetensors, write_torch, write_weights
from smddp.errors import CheckpointError

# A process that may write files of 100 kB and no more fails in the middle of a file, as on a full disk.
FULL = """
import pathlib, resource, signal, sys
from torch import nn
from smddp.checkpoint.convert.saved_model import write_weights
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
write_weights(nn.Linear(200, 200).state_dict(), pathlib.Path(sys.argv[1]))
"""


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


class WithText(nn.Linear):
    """A module whose state is not tensors alone."""

    def get_extra_state(self) -> dict[str, str]:
        return {"version": "a"}

    def set_extra_state(self, state: dict[str, str]) -> None:
        self.extra = state


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_both_files_hold_the_weights(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    write_weights(model.state_dict(), tmp_path / "model")

    from_safetensors = safetensors.torch.load_file(tmp_path / "model" / "model.safetensors")
    from_pt = torch.load(tmp_path / "model" / "model.pt", weights_only=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(from_safetensors[name], tensor)
        assert torch.equal(from_pt[name], tensor)
    assert names(tmp_path / "model") == ["model.pt", "model.safetensors"]


def test_the_safetensors_file_is_the_one_that_the_package_writes(tmp_path: Path) -> None:
    weights = {**nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).state_dict(), "half": torch.randn(3).bfloat16()}
    write_weights(weights, tmp_path)
    content = (tmp_path / "model.safetensors").read_bytes()
    assert content == safetensors.torch.save(weights, {"format": "pt"})


def test_a_large_model_is_written_as_hugging_face_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    weights = {f"layers.{layer}.weight": torch.randn(10, 10) for layer in range(7)} | {"bias": torch.randn(500)}
    monkeypatch.setattr(saved_model, "MOST_BYTES", 1000)
    write_weights(weights, tmp_path / "own")
    assert "wrote the model in 5 files of safetensors, with an index and without model.pt" in caplog.text
    huggingface_hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "theirs").mkdir()
    huggingface_hub.save_torch_state_dict(weights, tmp_path / "theirs", max_shard_size=1000)
    assert names(tmp_path / "own") == names(tmp_path / "theirs")
    for name in names(tmp_path / "own"):
        own, theirs = ((tmp_path / side / name).read_bytes() for side in ("own", "theirs"))
        assert own == theirs if name.endswith(".safetensors") else json.loads(own) == json.loads(theirs), name


def test_tied_weights_of_a_large_model_are_named_in_the_file_that_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_model, "MOST_BYTES", 1)
    write_weights({**Tied().state_dict(), "z": torch.ones(1)}, tmp_path)
    files = sorted(tmp_path.glob("*.safetensors"))
    metadata = [safetensors.safe_open(path, framework="pt").metadata() for path in files]
    assert metadata == [{"format": "pt", "head.weight": "embed.weight"}, {"format": "pt"}]


@pytest.mark.parametrize("sizes", [(1, 10**9), (10**9, 1), (1, 30)], ids=str)
def test_of_an_earlier_model_in_other_files_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int]
) -> None:
    weights = {"a": torch.ones(4), "b": torch.ones(2), "c": torch.ones(1)}
    (tmp_path / "config.json").touch()
    for directory, of in (tmp_path, sizes), (tmp_path / "new", sizes[1:]):
        for size in of:
            monkeypatch.setattr(saved_model, "MOST_BYTES", size)
            write_weights(weights, directory)
    assert names(tmp_path) == sorted([*names(tmp_path / "new"), "config.json", "new"])


def test_a_large_model_that_could_not_be_written_leaves_the_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_model, "MOST_BYTES", 1)
    write_weights({"a": torch.ones(4), "b": torch.ones(2)}, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in names(tmp_path)}
    monkeypatch.setattr(saved_model, "_index", lambda files: [][len(files)])
    with pytest.raises(IndexError):
        write_weights({"a": torch.zeros(4), "b": torch.zeros(2)}, tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in names(tmp_path)} == before


def test_a_dtype_that_safetensors_cannot_store_is_in_the_other_file_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weights = {"a": torch.ones(2, dtype=torch.complex128)}
    write_weights(weights, tmp_path)
    assert names(tmp_path) == ["model.pt"]
    assert "a is torch.complex128" in caplog.text
    with pytest.raises(CheckpointError, match=r"as safetensors: a is torch\.complex128"):
        write_safetensors(weights, tmp_path / "a.safetensors")


def test_whoever_may_read_new_files_may_read_both(tmp_path: Path) -> None:
    write_weights(nn.Linear(2, 2).state_dict(), tmp_path)
    (tmp_path / "other").touch()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_the_safetensors_file_says_that_it_is_of_pytorch(tmp_path: Path) -> None:
    write_weights(nn.Linear(2, 2).state_dict(), tmp_path)
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_weights_that_two_layers_share_are_written_once_and_loaded(tmp_path: Path) -> None:
    model = Tied()
    write_weights(model.state_dict(), tmp_path)
    other = Tied()
    safetensors.torch.load_model(other, tmp_path / "model.safetensors")
    assert torch.equal(other.head.weight, model.embed.weight)
    assert len(safetensors.torch.load_file(tmp_path / "model.safetensors")) == 1
    loaded = torch.load(tmp_path / "model.pt", weights_only=True)
    assert loaded["head.weight"].data_ptr() == loaded["embed.weight"].data_ptr()


def test_weights_that_overlap_but_are_not_the_same_are_written_each(tmp_path: Path) -> None:
    whole = torch.arange(12.0)
    weights = {"query": whole[:8].view(2, 4), "key": whole[4:].view(4, 2), "transposed": whole[:8].view(2, 4).t()}
    write_weights(weights, tmp_path)
    for loaded in (
        safetensors.torch.load_file(tmp_path / "model.safetensors"),
        torch.load(tmp_path / "model.pt", weights_only=True),
    ):
        assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())


def test_a_small_view_does_not_bring_all_the_memory_it_lies_in(tmp_path: Path) -> None:
    write_torch({"row": torch.zeros(1000, 1000)[0]}, tmp_path / "row.pt")
    assert (tmp_path / "row.pt").stat().st_size < 10_000


def test_a_state_dicts_versions_of_its_layers_stay(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(2)
    write_weights(model.state_dict(), tmp_path)
    assert torch.load(tmp_path / "model.pt", weights_only=True)._metadata == model.state_dict()._metadata


def test_what_a_safetensors_file_cannot_hold_is_in_the_other_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_weights(nn.Linear(2, 2).state_dict(), tmp_path)
    model = WithText(2, 2)
    write_weights(model.state_dict(), tmp_path)
    assert names(tmp_path) == ["model.pt"], "the old model.safetensors holds another model"
    assert "_extra_state is no tensor" in caplog.text
    WithText(2, 2).load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))


def test_what_could_not_be_loaded_again_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"it would hold .*Path"):
        write_torch({"where": tmp_path}, tmp_path / "state.pt")
    assert names(tmp_path) == []


@pytest.mark.slow
def test_on_a_full_disk_the_old_model_stays_without_debris(tmp_path: Path) -> None:
    write_weights(nn.Linear(2, 2).state_dict(), tmp_path)
    before = [(tmp_path / name).read_bytes() for name in ("model.pt", "model.safetensors")]
    ended = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    told = ended.stderr.splitlines()[-1]
    assert told.startswith("smddp.errors.CheckpointError: could not write")
    assert "model.safetensors: File too large; free some space" in told
    assert [(tmp_path / name).read_bytes() for name in ("model.pt", "model.safetensors")] == before
    assert names(tmp_path) == ["model.pt", "model.safetensors"]


def test_a_safetensors_file_on_a_full_disk_is_told_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; free some space"):
        write_safetensors({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    assert names(tmp_path) == []


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"could not write .*model\.safetensors: (Not a directory|File exists)"):
        write_weights(nn.Linear(2, 2).state_dict(), tmp_path / "file")


def test_the_files_are_durable_with_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    fsync = os.fsync

    def spy(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", spy)
    write_weights(nn.Linear(2, 2).state_dict(), tmp_path)
    assert synced == ["model.safetensors", "model.pt", tmp_path.name]
