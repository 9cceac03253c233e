"""The best checkpoint: by the metric, valid, and the older of two that are as good."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from smddp.checkpoint.restore.listing import find_best
from smddp.checkpoint.stores import open_store
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.by_hand import write_checkpoint


def save(place: Path, step: int, **metrics: float) -> None:
    write_checkpoint(open_store(place), step, {"model": {"a": torch.full((3,), float(step))}}, metrics=metrics)


def damage(place: Path, step: int) -> None:
    (file,) = (place / f"step-{step:012}").rglob("model.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(("mode", "step"), [("max", 2), ("min", 3)])
def test_the_best_is_the_largest_or_the_smallest(tmp_path: Path, mode: str, step: int) -> None:
    for number, value in enumerate([0.5, 0.9, 0.1, 0.7], start=1):
        save(tmp_path, number, accuracy=value, other=-value)
    assert find_best(tmp_path, "accuracy", mode).step == step  # type: ignore[arg-type]


def test_infinite_values_are_values(tmp_path: Path) -> None:
    save(tmp_path, 1, loss=-math.inf)
    save(tmp_path, 2, loss=0.0)
    assert find_best(tmp_path, "loss", "min").step == 1


@pytest.mark.parametrize("mode", ["max", "min"])
def test_of_two_that_are_as_good_the_older_is_the_better(tmp_path: Path, mode: str) -> None:
    for step in (3, 5, 8):
        save(tmp_path, step, accuracy=0.5)
    assert find_best(tmp_path, "accuracy", mode).step == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["max", "min"])
def test_nan_is_never_the_best_nor_is_what_was_not_measured(tmp_path: Path, mode: str) -> None:
    save(tmp_path, 1, accuracy=math.nan)
    save(tmp_path, 2, accuracy=0.1)
    save(tmp_path, 3)
    assert find_best(tmp_path, "accuracy", mode).step == 2  # type: ignore[arg-type]


def test_a_damaged_one_is_passed_over_with_the_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(tmp_path, 1, accuracy=0.5)
    save(tmp_path, 2, accuracy=0.9)
    save(tmp_path, 3, accuracy=0.99)
    damage(tmp_path, 2)
    (tmp_path / "step-000000000003" / "manifest.json").write_text("{}")
    found = find_best(tmp_path, "accuracy")
    assert (found.step, found.valid) == (1, True)
    assert "step-000000000002, which is better by accuracy: model.safetensors was changed" in caplog.text
    assert "step-000000000003: manifest.json is not a manifest" in caplog.text


def test_when_none_of_them_is_valid_nothing_is_chosen(tmp_path: Path) -> None:
    save(tmp_path, 1, accuracy=0.5)
    save(tmp_path, 2)
    damage(tmp_path, 1)
    with pytest.raises(CheckpointError, match=r"that have 'accuracy' none is valid: .*step-000000000001$"):
        find_best(tmp_path, "accuracy")


def test_a_metric_that_none_has_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    save(tmp_path, 1, loss=0.5)
    save(tmp_path, 2, accuracy=math.nan, top5=0.1)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* has a value of 'f1', only of accuracy, loss, top5"):
        find_best(tmp_path, "f1")
    with pytest.raises(CheckpointError, match="has a value of 'accuracy'"):
        find_best(tmp_path, "accuracy")


def test_bad_input_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'max' or the 'min'"):
        find_best(tmp_path, "accuracy", "best")  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="there is no checkpoint in"):
        find_best(tmp_path, "accuracy")
    with pytest.raises(CheckpointError, match="there is no directory"):
        find_best(tmp_path / "nothing", "accuracy")
    save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="nor of another"):
        find_best(tmp_path, "accuracy")
