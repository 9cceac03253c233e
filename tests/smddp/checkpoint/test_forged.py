"""Whatever a forged checkpoint says, whose digests all match, its readers raise CheckpointError, and say of what."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from smddp.checkpoint import Checkpointer, WeightsError, export, list_checkpoints, load_weights
from smddp.errors import CheckpointError

MANIFEST = "manifest.json"
VALUES: list[Any] = [3, -1, 2.5, 10**30, "x", "", None, True, [], [1], [[]], {}, {"a": 1}]
VALUES += [{"$": 3}, {"$": []}, {"$": "tensor", "name": "zz"}, {"$": "tuple", "items": 3}, {"$": "dict", "items": []}]


def parts() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer, "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 3)}


class Forger:
    """A checkpoint of which one JSON value at a time is another, with digests that match."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with Checkpointer(directory, parts()) as checkpointer:
            checkpointer.save(1)
        self.step = directory / "step-000000000001"
        self.manifest = json.loads((self.step / MANIFEST).read_bytes())
        self.files = self.step / self.manifest["directory"]
        self.saved = {name: self.path(name).read_bytes() for name in (MANIFEST, "state.json", "digests.json")}
        self.contents = {name: json.loads(data) for name, data in self.saved.items()}
        self.places = [(name, place) for name in self.contents for place in places(self.contents[name])]

    def path(self, name: str) -> Path:
        return (self.step if name == MANIFEST else self.files) / name

    def forge(self, name: str, place: tuple[Any, ...], value: Any) -> None:
        for each, data in self.saved.items():
            self.path(each).write_bytes(data)
        content = replaced(self.contents[name], place, value)
        if name != MANIFEST:
            data = json.dumps(content).encode()
            self.path(name).write_bytes(data)
            record = {"size": len(data), "xxh3_128": xxhash.xxh3_128_hexdigest(data)}
            content = replaced(self.manifest, ("files", name), record)
        self.path(MANIFEST).write_text(json.dumps(signed(content)))


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys to each value; of a long list, such as the words of a random state, only the first few."""
    yield place
    items = value.items() if isinstance(value, dict) else enumerate(value[:4]) if isinstance(value, list) else ()
    for key, each in items:
        yield from places(each, (*place, key))


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return new
    changed = value.copy()
    changed[place[0]] = replaced(value[place[0]], place[1:], new)
    return changed


def signed(manifest: Any) -> Any:
    if not isinstance(manifest, dict):
        return manifest
    unsigned = json.dumps({**manifest, "xxh3_128": "0" * 32}).encode()
    return {**manifest, "xxh3_128": xxhash.xxh3_128_hexdigest(unsigned)}


def ways_to_read(directory: Path, out: Path) -> Iterator[Callable[[], object]]:
    yield lambda: Checkpointer(directory, parts()).load()
    yield lambda: load_weights(parts()["model"], directory)
    yield lambda: repr(list_checkpoints(directory))
    for form, part in ("model", "model"), ("safetensors", "model"), ("torch", "optimizer"), ("dcp", "optimizer"):
        yield partial(export, directory, out / "out", form, [part])


@pytest.fixture(scope="module")
def forger(tmp_path_factory: pytest.TempPathFactory) -> Forger:
    return Forger(tmp_path_factory.mktemp("forged"))


def test_the_checkpoint_can_be_read_until_it_is_forged(forger: Forger) -> None:
    forger.forge("state.json", (), forger.contents["state.json"])
    assert load_weights(parts()["model"], forger.directory).complete
    check(forger, allowed=())


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_nothing_but_a_checkpoint_error_comes_of_a_forged_value(forger: Forger, data: st.DataObject) -> None:
    name, place = data.draw(st.sampled_from(forger.places))
    forger.forge(name, place, data.draw(st.sampled_from(VALUES)))
    check(forger)


def check(forger: Forger, *, allowed: tuple[type[Exception], ...] = (CheckpointError, WeightsError)) -> None:
    out = forger.directory.with_name("out")
    for read in ways_to_read(forger.directory, out):
        try:
            read()
        except allowed as error:
            assert not str(error).partition(":")[0].endswith("Error"), "only Python's own words"
        finally:
            shutil.rmtree(out, ignore_errors=True)
            for owner in set(forger.directory.iterdir()) - {forger.step}:
                owner.unlink(missing_ok=True)  # a Checkpointer that is collected removes its own
