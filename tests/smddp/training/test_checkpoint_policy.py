from pathlib import Path
from typing import Any

import pytest

from smddp import CheckpointPolicy
from smddp.job import Job


def test_without_a_word_it_saves_every_five_minutes_and_stands_two_failures() -> None:
    policy = CheckpointPolicy()
    assert (policy.every, policy.seconds, policy.tolerate_failures) == (None, 300, 2)
    assert policy.keep.last == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"every": 0},
        {"every": -5},
        {"every": 2.5},
        {"every": True},
        {"every": "often"},
        {"seconds": 0},
        {"seconds": float("nan")},
        {"save_frozen": "no"},
        {"tolerate_failures": -1},
        {"share": "rank"},
        {"sync": "copy"},
        {"mean_hours_between_failures": 0},
    ],
)
def test_what_is_not_possible_is_refused_by_name_with_what_is(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"^{name}={wrong[name]!r}: give "):
        CheckpointPolicy(**wrong)


def test_auto_must_know_when_to_measure_first() -> None:
    with pytest.raises(ValueError, match='every="auto" needs seconds'):
        CheckpointPolicy(every="auto", seconds=None)


def test_all_ranks_write_to_s3_and_one_node_to_a_directory(tmp_path: Path) -> None:
    local = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)})
    direct = Job.detect({"SMDDP_RUN_DIR": str(tmp_path), "SMDDP_CHECKPOINT_S3_URI": "s3://bucket/run"})
    assert [CheckpointPolicy().writers(job) for job in (local, direct)] == ["node", "all"]
    assert [CheckpointPolicy(share="all").writers(job) for job in (local, direct)] == ["all", "all"]
    assert [CheckpointPolicy(share="node").writers(job) for job in (local, direct)] == ["node", "node"]


def test_more_nodes_fail_more_often() -> None:
    assert CheckpointPolicy().seconds_between_failures(1) == 1000 * 3600
    assert CheckpointPolicy(mean_hours_between_failures=100).seconds_between_failures(4) == 25 * 3600
