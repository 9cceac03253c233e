"""No damage is loaded in silence: any flipped bit, truncation, zeroed page or foreign byte is found."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smddp.checkpoint import list_checkpoints

NewRun = Callable[..., Any]
PAGE = 512


def flip(data: bytearray, dice: random.Random) -> None:
    bit = dice.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8


def truncate(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def extend(data: bytearray, dice: random.Random) -> None:
    data += dice.randbytes(dice.randint(1, 100))


def zero_a_page(data: bytearray, dice: random.Random) -> None:
    start = dice.randrange(0, len(data), PAGE)
    data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))


def swap(data: bytearray, dice: random.Random) -> None:
    one, other = dice.sample(range(len(data)), 2)
    data[one], data[other] = data[other], data[one]


@pytest.mark.parametrize("damage", [flip, truncate, extend, zero_a_page, swap], ids=lambda each: each.__name__)
def test_falls_back_from_any_damage(damage: Callable[..., None], new_run: NewRun) -> None:
    run, dice = new_run(), random.Random(damage.__name__)
    run.save(1)
    newest = run.save(2)
    names = sorted(path.name for path in newest.iterdir())
    assert len(names) == 5
    found = 0
    for name in names * 12:
        path = newest / name
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damage(damaged, dice)
        if damaged != whole:
            path.write_bytes(damaged)
            assert run.load() == 1, f"{damage.__name__} in {name} was not noticed"
            path.write_bytes(whole)
            found += 1
    assert found >= 40
    assert run.load() == 2


def test_files_of_two_checkpoints_are_never_mixed(new_run: NewRun) -> None:
    run = new_run()
    older, newer = run.save(1), run.save(2)
    for path in list(newer.iterdir()):
        whole = path.read_bytes()
        shutil.copy(older / path.name, path)
        if path.read_bytes() != whole:
            assert run.load() == 1, f"{path.name} of another checkpoint was not noticed"
            path.write_bytes(whole)
    assert run.load() == 2


def test_the_list_gives_every_reason(new_run: NewRun) -> None:
    run = new_run()
    for step in (1, 2, 3):
        run.save(step)
    Path(run.directory / "step-000000000002" / "model.safetensors").write_bytes(b"")
    (run.directory / "step-000000000003" / "manifest.json").unlink()
    listed = list_checkpoints(run.directory)
    assert [(info.step, info.status, info.valid) for info in listed] == [
        (1, "valid", True),
        (2, "damaged", False),
        (3, "incomplete", False),
    ]
    assert [bool(info.reason) for info in listed] == [False, True, True]
    assert [info.manifest is None for info in listed] == [False, False, True]
    assert listed[0].path == run.directory / "step-000000000001"


def test_a_directory_that_does_not_exist_has_no_checkpoints(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path / "none") == []
