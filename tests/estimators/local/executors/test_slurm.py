"""What a host says that Slurm could not start; test_slurm.py of the platform runs whole jobs on a real Slurm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from estimators.local.executors.executor import ExecutorError
from estimators.local.executors.slurm.executor import SlurmHost
from estimators.local.executors.supervised_process import SupervisedProgram


def fail() -> None:
    raise ExecutorError("scontrol failed")


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (
            lambda: "Slurm has ended job 7, which is CANCELLED",
            "algo-2 was lost: Slurm has ended job 7, which is CANCELLED (srun on n2: srun: error: no answer)",
        ),
        (
            fail,
            "algo-2 was lost: Slurm does not say: scontrol failed (srun on n2: srun: error: no answer)",
        ),
        (lambda: None, "algo-2: srun started nothing on n2: srun: error: no answer"),
    ],
)
def test_a_host_that_did_not_start_is_lost_if_slurm_has_ended_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: Callable[[], str | None], told: str
) -> None:
    """One host prints, and the job is cancelled before the other one's program runs."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\necho 'srun: error: no answer' >&2\nexit 1\n")
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = SupervisedProgram(
        isolated=False,
        name="algo-2",
        hosts={"algo-2": "127.0.0.1"},
        ml_root=str(tmp_path),
        argv=("true",),
        environment={},
        directory=str(tmp_path),
        delivered=(),
        given=(),
    )
    allocation = cast(Any, SimpleNamespace(job="7", loss=loss))
    with pytest.raises(ExecutorError) as failed:
        SlurmHost(program, allocation, "n2")
    assert str(failed.value) == told
