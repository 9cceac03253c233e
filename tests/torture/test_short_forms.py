"""The tortures that are not done elsewhere, a few times each; `make torture` does them as often as one likes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.torture.cost import LARGEST_STALL, measure

ROOT = Path(__file__).parents[2]
AFTER = ("--after", "10")
"""The watchdog's bound: other tests use the machine, and a rank may get no core for seconds."""


def torture(*arguments: str, seconds: float = 110) -> str:
    """Run some in a process without threads, from which they can fork."""
    run = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow
def test_killed_again_and_again_a_run_ends_with_the_same_bits() -> None:
    told = torture("tests.torture.kill", "--kills", "10", "--seed", "1")
    assert "done=10, unit='kills'" in told


@pytest.mark.slow
def test_killed_with_two_ranks_a_run_ends_with_the_same_bits() -> None:
    told = torture("tests.torture.kill", "--kills", "4", "--ranks", "2")
    assert "done=4, unit='kills'" in told


@pytest.mark.slow
def test_stopped_and_killed_at_other_numbers_of_ranks_a_job_takes_every_sample_once() -> None:
    told = torture("tests.torture.elastic", "--interruptions", "8", "--seed", "1")
    assert "done=8, unit='interruptions'" in told


@pytest.mark.slow
def test_stopped_and_killed_in_other_layouts_a_sharded_model_loads_what_was_saved() -> None:
    told = torture("tests.torture.elastic", "--chains", "1", "--seed", "3")
    assert "done=1, unit='chains'" in told


@pytest.mark.slow
@pytest.mark.seaweedfs
@pytest.mark.namespaces
@pytest.mark.timeout(600)
def test_whichever_process_of_a_platform_is_killed_nothing_of_it_is_left() -> None:
    # 15 platforms start, two at a time, in seconds of processor time each. Every wait in it has a limit of its own,
    # which decides; together they take far more than the usual two minutes.
    told = torture("tests.torture.platform_kills", "--kills", "1", "--seed", "1", seconds=500)
    assert "done=15, unit='kills'" in told


@pytest.mark.slow
@pytest.mark.seaweedfs
def test_what_a_killed_platform_has_answered_the_next_one_knows() -> None:
    told = torture("tests.torture.platform_restarts", "--kills", "2", "--seed", "1")
    assert "done=2, unit='kills'" in told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_watchdog_names_rank_and_kind_of_a_fault_and_nothing_else() -> None:
    few = ("--faults", "6", "--steps", "200", "--together", "2")
    told = torture("tests.torture.hangs", *few, *AFTER, "--seed", "1", seconds=500)
    assert "6 faults" in told
    assert "done=200, unit='steps'" in told


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_bit_that_flips_in_one_replica_is_named_and_nothing_else() -> None:
    told = torture("tests.torture.flips", "--flips", "8", "--steps", "60", "--seed", "1", seconds=500)
    assert "done=8, unit='flips'" in told
    assert "done=60, unit='steps'" in told


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_ledger_of_a_run_that_is_stopped_and_killed_adds_up_to_its_wall_time() -> None:
    few = ("--lives", "3", "--largest-error", "0.04")
    told = torture("tests.torture.goodput", *few, *AFTER, "--seed", "2", seconds=350)
    assert "done=3, unit='lives'" in told
    assert "failures=()" in told


@pytest.mark.slow
def test_nothing_is_left_of_a_warm_start_that_is_killed() -> None:
    told = torture("tests.torture.warm_starts", "--kills", "12", "--seed", "1")
    assert "done=12, unit='warm starts'" in told


@pytest.mark.slow
def test_a_save_holds_training_for_little_more_than_a_copy_of_the_state(tmp_path: Path) -> None:
    # The machine is shared with all the other tests: one thread, which waits for no other, twice the bound, and the
    # best stall by the best memcpy of up to three processes: a neighbour may take the memory while one of them runs.
    stalls, copies = [], []
    for number in range(3):
        (own := tmp_path / str(number)).mkdir()
        found = measure(own, megabytes=100, loops=0, threads=1)
        assert max(found["memory"]) < 1.1 * found["state"]
        stalls += found["stall"]
        copies += found["memcpy 1 thread"]
        if min(stalls) < 2 * LARGEST_STALL * min(copies):
            return
    pytest.fail(f"a save stalled {min(stalls) / min(copies):.2f} × memcpy")
