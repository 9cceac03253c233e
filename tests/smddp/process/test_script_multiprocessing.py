"""A script that a worker imports does not begin its job again; a call that spawns ranks is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smddp.process.script_multiprocessing import find_spawn_call

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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("import torch.multiprocessing as mp\n\nmp.spawn(print, nprocs=2)\n", 3),
        ("from torch import multiprocessing\nmultiprocessing.spawn(print)\n", 2),
        ("from torch.multiprocessing import spawn as start\nif True:\n    start(\n        print)\n", 3),
        ("import torch\nx = torch.multiprocessing.start_processes(print)\n", 2),
        ("import torch.multiprocessing as mp\nmp.set_start_method('spawn')\n", None),
        ("import subprocess as mp\nmp.spawn(print)\n", None),
        ("def spawn():\n    pass\nspawn()\n", None),
        ("from .multiprocessing import spawn\nspawn(print)\n", None),
        ("this is no Python\n", None),
    ],
)
def test_the_call_is_found_by_whatever_name(tmp_path: Path, text: str, line: int | None) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    assert find_spawn_call(script) == line


def test_what_is_no_python_file_has_none(tmp_path: Path) -> None:
    assert find_spawn_call(tmp_path / "absent.py") is None
    (tmp_path / "train.sh").write_text("import torch.multiprocessing as mp; mp.spawn(print)\n")
    assert find_spawn_call(tmp_path / "train.sh") is None
