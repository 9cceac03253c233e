"""What a rule would leave: the newest valid one always, and no damaged one in the place of a good one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smddp.checkpoint.retention import PruningPlan, Retention, plan_pruning
from smddp.checkpoint.stores import open_store
from smddp.errors import CheckpointError
from tests.smddp.checkpoint.by_hand import write_checkpoint


def save(place: Path, step: int, **metrics: float) -> None:
    write_checkpoint(open_store(place), step, {"model": {"a": torch.ones(9)}}, metrics=metrics)


def damage(place: Path, step: int) -> None:
    (file,) = (place / f"step-{step:012}").rglob("model.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def steps(plan: PruningPlan) -> tuple[list[int], list[int]]:
    return [info.step for info in plan.stay], [info.step for info in plan.go]


def test_the_rules_decide(tmp_path: Path) -> None:
    for step, accuracy in [(10, 0.1), (15, 0.9), (20, 0.2), (25, 0.3), (30, 0.4), (35, 0.5)]:
        save(tmp_path, step, accuracy=accuracy)
    keep = Retention(last=2, best=1, metric="accuracy", every=20)
    plan = plan_pruning(open_store(tmp_path), keep)
    assert steps(plan) == ([15, 20, 30, 35], [10, 25])
    assert plan.size == sum(info.manifest.size for info in plan.go if info.manifest is not None) > 0
    assert len(list(tmp_path.iterdir())) == 6, "nothing is removed"


def test_the_newest_valid_one_counts_and_later_ones_are_left_alone(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    damage(tmp_path, 4)
    (tmp_path / "step-000000000005").mkdir()
    plan = plan_pruning(open_store(tmp_path), Retention(last=1))
    assert plan.newest.step == 3
    assert steps(plan) == ([3], [1, 2])


def test_what_is_incomplete_or_damaged_goes_and_does_not_count(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        save(tmp_path, step)
    (tmp_path / "step-000000000003" / "manifest.json").unlink()
    (file,) = (tmp_path / "step-000000000004").rglob("model.safetensors")
    file.unlink()
    assert steps(plan_pruning(open_store(tmp_path), Retention(last=2))) == ([2, 5], [1, 3, 4])


def test_without_a_valid_one_nothing_goes(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    damage(tmp_path, 1)
    damage(tmp_path, 2)
    with pytest.raises(CheckpointError, match=r"there is no valid checkpoint in .*: nothing is removed"):
        plan_pruning(open_store(tmp_path), Retention())


def test_a_misspelt_metric_does_not_cost_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step, accuracy=0.5)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* has a value of 'acuracy', only of accuracy"):
        plan_pruning(open_store(tmp_path), Retention(last=1, best=1, metric="acuracy"))


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with five whole checkpoints, to be copied."""
    place = tmp_path_factory.mktemp("five")
    for step in range(1, 6):
        save(place, step)
    return place


@given(last=st.integers(1, 6), every=st.none() | st.integers(1, 6), broken=st.sets(st.integers(1, 5)))
@pytest.mark.slow
def test_every_plan_keeps_a_valid_one_and_divides_what_is_before_it(
    five: Path, last: int, every: int | None, broken: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = shutil.copytree(five, tmp_path_factory.mktemp("place"), dirs_exist_ok=True)
    for step in broken:
        damage(place, step)
    store, keep = open_store(place), Retention(last=last, every=every)
    whole = [step for step in range(1, 6) if step not in broken]
    if not whole:
        with pytest.raises(CheckpointError):
            plan_pruning(store, keep)
        return
    stay, go = steps(plan_pruning(store, keep))
    assert max(whole) in stay
    assert sorted(stay + go) == list(range(1, max(whole) + 1))
