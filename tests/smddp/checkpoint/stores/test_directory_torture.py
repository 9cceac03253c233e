"""Kills, power losses, failing disks and second writers in short; `make torture` does them at length."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.torture.crash import SHARDED, WHOLE, lose_power
from tests.torture.disk_faults import fail_in_a_save
from tests.torture.kill_points import SHARDED as TWO_RANKS
from tests.torture.kill_points import kill_in_a_save
from tests.torture.two_writers import two_writers

_MEMORY = Path("/dev/shm")


@pytest.fixture
def directory() -> Iterator[Path]:
    """Give a directory in memory where there is such a thing: thousands of flushes wait for no disk there."""
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as path:
        yield Path(path)


@pytest.mark.parametrize(
    ("number", "again"), [(0, False), (2, False), (2, True)], ids=["first", "third, which prunes", "a second time"]
)
@pytest.mark.slow
def test_killed_at_each_operation_of_a_save_the_run_goes_on(number: int, again: bool, directory: Path) -> None:
    outcome = kill_in_a_save(number, again=again, directory=directory)
    assert not outcome.failures
    assert outcome.done > 30


@pytest.mark.slow
def test_killed_on_either_rank_of_a_sharded_save_the_run_goes_on(directory: Path) -> None:
    outcome = kill_in_a_save(1, directory=directory, layout=TWO_RANKS, every=8)
    assert not outcome.failures
    assert outcome.done > 6


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.slow
def test_what_was_durable_survives_a_loss_of_power_after_any_operation(seed: int, directory: Path) -> None:
    assert not lose_power(disks=400, seed=seed, directory=directory, layouts=WHOLE).failures


@pytest.mark.slow
def test_what_ranks_of_a_sharded_model_made_durable_survives_a_loss_of_power(directory: Path) -> None:
    assert not lose_power(disks=150, seed=1, directory=directory, layouts=SHARDED[:1]).failures


@pytest.mark.parametrize(
    ("number", "code", "lasting"),
    [(0, errno.EIO, False), (2, errno.EIO, False), (1, errno.ENOSPC, True), (2, errno.ENOSPC, True)],
)
@pytest.mark.slow
def test_a_disk_that_fails_at_any_operation_leaves_what_was_there(
    number: int, code: int, lasting: bool, directory: Path
) -> None:
    outcome = fail_in_a_save(number, code, lasting=lasting, directory=directory)
    assert not outcome.failures
    assert outcome.done > 30


@pytest.mark.slow
def test_of_two_writers_of_the_same_step_exactly_one_commits(directory: Path) -> None:
    assert not two_writers(meetings=12, seed=1, directory=directory).failures
