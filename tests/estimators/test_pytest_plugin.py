"""The fixtures that smddp gives to pytest, where a job does not do what its test wants."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

TESTS = """
import pytest
from estimators import Estimator


@pytest.fixture
def estimator(tmp_path):
    (tmp_path / "train.py").write_text("import sys; print('alas'); sys.exit(len(sys.argv) - 1)")
    (tmp_path / "code").mkdir()
    (tmp_path / "train.py").rename(tmp_path / "code" / "train.py")
    return lambda **more: Estimator(
        "train.py", source_dir=str(tmp_path / "code"), role="arn:aws:iam::123456789012:role/a",
        instance_type="ml.m5.large", use_spot_instances=True, max_run=100, max_wait=200,
        checkpoint_s3_uri="s3://of-nobody-here/run", output_path="s3://of-nobody-here/output", **more
    )


def test_ends(assert_trains, estimator):
    assert assert_trains(estimator()).model_data


def test_fails(assert_trains, estimator):
    assert_trains(estimator(hyperparameters={"a": 1}))


def test_is_never_interrupted(assert_trains, estimator):
    assert_trains(estimator(), interruptions=1)


def test_is_interrupted_a_negative_number_of_times(assert_trains, estimator):
    assert_trains(estimator(), interruptions=-1)
"""


@pytest.mark.slow
def test_a_job_that_does_not_do_what_is_wanted_fails_the_test_with_the_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    found = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    found.assert_outcomes(passed=1, failed=3)
    found.stdout.fnmatch_lines(
        [
            "*is Failed before it is Completed. AlgorithmError:*",
            "The end of its log:",
            "  algo-1: alas",
            "*is Completed before it has saved a checkpoint.*",
            "*ValueError: interruptions=-1: give 0 or more.",
        ]
    )
