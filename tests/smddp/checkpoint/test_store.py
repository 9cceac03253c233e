"""The order of writes: nothing gets its name before its bytes are on the disk, and the manifest gets its last."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smddp.checkpoint.manifest import FileRecord
from smddp.checkpoint.store import DirectoryStore
from smddp.errors import CheckpointError


def test_each_file_is_flushed_before_it_is_named_and_the_manifest_is_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, events = tmp_path / "new" / "root", []

    def noted(owner: object, name: str, describe: Callable[..., Any]) -> None:
        real = getattr(owner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            events.append((name, *describe(*arguments)))
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, call)

    def of_descriptor(descriptor: int) -> tuple[str, int]:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        return str(path.relative_to(tmp_path)), 0 if path.is_dir() else path.stat().st_size

    noted(os, "fsync", of_descriptor)
    noted(Path, "replace", lambda source, target: (source.name, target.name))
    noted(Path, "mkdir", lambda path: (str(path.relative_to(tmp_path)),))

    store = DirectoryStore(root)
    store.create(1)
    record = store.write(1, "model.safetensors", [memoryview(b"1234"), memoryview(b"56")])
    store.commit(1, b"{}")

    step = "new/root/step-000000000001"
    assert record.size == 6
    assert events == [
        ("mkdir", "new"),
        ("fsync", ".", 0),
        ("mkdir", "new/root"),
        ("fsync", "new", 0),
        ("mkdir", step),
        ("fsync", "new/root", 0),
        ("fsync", f"{step}/model.safetensors.smddp-partial", 6),
        ("replace", "model.safetensors.smddp-partial", "model.safetensors"),
        ("fsync", step, 0),
        ("fsync", f"{step}/manifest.json.smddp-partial", 2),
        ("replace", "manifest.json.smddp-partial", "manifest.json"),
        ("fsync", step, 0),
    ]


def test_the_manifest_goes_first_when_a_checkpoint_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, unlinked = DirectoryStore(tmp_path), []
    store.create(1)
    store.write(1, "a.safetensors", [memoryview(b"1")])
    store.commit(1, b"{}")
    real = Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **options: (unlinked.append(path.name), real(path, **options)))
    store.remove(1)
    assert unlinked == ["manifest.json", "a.safetensors"]
    assert store.steps() == []


def test_files_larger_than_a_read_are_verified_whole(tmp_path: Path) -> None:
    store, data = DirectoryStore(tmp_path), os.urandom(9 * 2**20 + 5)
    store.create(1)
    record = store.write(1, "model.safetensors", [memoryview(data)])
    assert bytes(store.read(1, "model.safetensors", record).numpy()) == data
    store.verify(1, "model.safetensors", record)
    for position in (0, 5 * 2**20, len(data) - 1):
        damaged = bytearray(data)
        damaged[position] ^= 1
        (store.path(1) / "model.safetensors").write_bytes(damaged)
        for check in (store.read, store.verify):
            with pytest.raises(CheckpointError, match="was changed"):
                check(1, "model.safetensors", record)


def test_a_size_that_is_claimed_is_not_believed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.create(1)
    store.write(1, "model.safetensors", [memoryview(b"1")])
    with pytest.raises(CheckpointError, match="has 1 bytes instead of 1000000000000000"):
        store.read(1, "model.safetensors", FileRecord(size=10**15, xxh3_128="0" * 32))


def test_a_manifest_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.create(1)
    (store.path(1) / "manifest.json").touch()
    os.truncate(store.path(1) / "manifest.json", 2**40)
    with pytest.raises(CheckpointError, match="is not a file of at most"):
        store.read_manifest(1)
