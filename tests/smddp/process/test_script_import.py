"""A script that a worker imports does not begin its job again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BEGINS_IN_WORKER = """
import multiprocessing

def work():
    pass

if __name__ == "__mp_main__":
    CALL
else:
    worker = multiprocessing.get_context("spawn").Process(target=work)
    worker.start()
    worker.join()
    print(worker.exitcode)
"""

UNGUARDED = """
import torch
import smddp

class Ones(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.ones(3)

def main(job):
    model = torch.nn.Linear(3, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = trainer.loader(Ones(), batch_size=4, num_workers=2, multiprocessing_context="METHOD")
    for _ in trainer.epochs(1):
        for batch in trainer.batches(loader):
            trainer.step(trainer.model(batch).mean())

smddp.run(main)
"""


def run(script: Path, *, check: bool) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script],
        env={**os.environ, "SMDDP_RUN_DIR": str(script.parent / "run")},
        capture_output=True,
        text=True,
        timeout=300,
        check=check,
    )


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("import smddp; smddp.join()", "smddp.join"),
        ("from estimators.local import LocalSageMaker; LocalSageMaker().start()", "LocalSageMaker"),
        (
            "from estimators import Estimator; Estimator(entry_point='x.py', role='arn', instance_type='ml.m5.large', "
            "instance_count=1).fit()",
            "Estimator.fit",
        ),
    ],
)
def test_what_begins_a_job_is_refused_while_a_worker_imports_the_script(tmp_path: Path, call: str, named: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(BEGINS_IN_WORKER.replace("CALL", call))
    environ = {**os.environ, "SMDDP_RUN_DIR": str(tmp_path / "run")}
    ended = subprocess.run(
        [sys.executable, script], env=environ, capture_output=True, text=True, timeout=90, check=True
    )
    assert ended.stdout == "1\n"
    assert f'the script calls {named} again: put the call below `if __name__ == "__main__":`' in ended.stderr


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_an_unguarded_run_fails_for_that_reason(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.replace("METHOD", method))
    environ = {**os.environ, "SMDDP_RUN_DIR": str(tmp_path / "run")}
    ended = subprocess.run(
        [sys.executable, script], env=environ, capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.returncode == 1
    reason, *rest = (tmp_path / "run" / "output" / "failure").read_text().splitlines()
    assert reason.startswith("smddp.errors.UnguardedScriptError: a process that multiprocessing has started")
    assert 'put the call below `if __name__ == "__main__":`' in reason
    assert "exited unexpectedly" in rest[0]
