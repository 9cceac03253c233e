"""A SIGTERM at any moment of a script: what is saved, what is told, and the exit code."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from smddp.checkpoint import list_checkpoints

pytestmark = pytest.mark.usefixtures("fork_python")

HEAD = """
import importlib
import os
import signal
import sys
import threading
import time
import torch
from torch import nn
import smddp

run = importlib.import_module("smddp.training.run")
run.STOP_SECONDS, run.LEAST_SECONDS = LATE_AFTER, 0.0
run.stop_signal.patience = 0.5

def ready():
    print("ready", flush=True)

def parts(job, **options):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer
"""


class Ended(NamedTuple):
    code: int
    log: str
    failure: str
    steps: list[int]


def stopped(
    tmp_path: Path,
    body: str,
    *,
    by: signal.Signals = signal.SIGTERM,
    launcher: tuple[str, ...] = (),
    before: str = "",
    late_after: float = 50.0,
) -> Ended:
    """Sends SIGTERM once the script is ready, and waits for its end; after so many seconds it would be a late one."""
    script = tmp_path / "script.py"
    script.write_text(before + HEAD.replace("LATE_AFTER", str(late_after)) + body + "\nsmddp.run(main)\n")
    with subprocess.Popen(
        [sys.executable, *launcher, str(script)],
        env={**os.environ, "SMDDP_RUN_DIR": str(tmp_path / "run")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()
        process.send_signal(by)
        _, log = process.communicate(timeout=60)
    failure = tmp_path / "run" / "output" / "failure"
    return Ended(
        process.returncode,
        log,
        failure.read_text() if failure.exists() else "",
        [found.step for found in list_checkpoints(tmp_path / "run" / "checkpoints")],
    )


def test_before_training_began_nothing_is_lost_and_75_says_so(tmp_path: Path) -> None:
    ended = stopped(
        tmp_path,
        """
def main(job):
    ready()
    time.sleep(30)  # a look at the data, say
""",
    )
    assert (ended.code, ended.failure) == (75, "")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_loop_that_never_asks_is_ended_and_told_how_to_ask(tmp_path: Path, momentum: float) -> None:
    ended = stopped(
        tmp_path,
        f"""
def main(job):
    model, optimizer = parts(job)
    optimizer.param_groups[0]["momentum"] = {momentum}
    for step in range(10_000):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 3:
            ready()
        time.sleep(0.01)
""",
    )
    assert ended.code == 1
    assert "job.stopping" in ended.failure


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_loop_that_asks_saves_and_goes_on_later(tmp_path: Path, by: signal.Signals) -> None:
    body = """
def main(job):
    model, optimizer = parts(job)
    with smddp.Checkpointer(job.checkpoint_location, {"model": model, "optimizer": optimizer}) as checkpointer:
        found = checkpointer.load()
        for step in range(found.step if found else 0, 10_000):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            if step == 3 or found:
                ready()
            if job.stopping:
                checkpointer.save(step + 1)
                checkpointer.wait()
                raise smddp.Stopped
            time.sleep(0.01)
"""
    first = stopped(tmp_path, body, by=by)
    assert (first.code, first.failure) == (75, ""), first.log
    assert first.steps[-1] > 3
    second = stopped(tmp_path, body)
    assert second.code == 75, second.log
    assert second.steps[-1] > first.steps[-1]


TRAINER = """
def trained(job):
    model, optimizer = parts(job)
    trainer = smddp.Trainer(job, model, optimizer, checkpoints=smddp.CheckpointPolicy(seconds=None))
    loader = trainer.loader(torch.utils.data.TensorDataset(torch.ones(8, 1)), batch_size=4)
    return trainer, loader

def train(trainer, loader):
    for (batch,) in trainer.batches(loader):
        trainer.step(trainer.model(batch).mean())
"""


@pytest.mark.slow
def test_an_evaluation_that_takes_too_long_is_left_with_all_steps_saved(tmp_path: Path) -> None:
    ended = stopped(
        tmp_path,
        TRAINER
        + """
from smddp.training import save_schedule
from smddp.training.active_runs import active_runs

def main(job):
    save_schedule._LONG_EVALUATION_SECONDS = 0.0  # two batches are expected to be short
    trainer, loader = trained(job)
    evaluation = trainer.evaluation_loader(range(8), batch_size=4)
    for _ in trainer.epochs(3):
        train(trainer, loader)
        for batch in trainer.batches(evaluation):
            while not active_runs.all_work_is_durable():  # the checkpoint of before it
                time.sleep(0.01)
            ready()
            threading.Event().wait(60)
""",
        late_after=2.0,
    )
    assert (ended.code, ended.failure) == (75, ""), ended.log
    assert ended.steps == [2]
    assert "all steps are in a checkpoint" in ended.log


HANGS_IN_STEP_3 = """
def main(job):
    trainer, loader = trained(job)
    for _ in trainer.epochs(3):
        for (batch,) in trainer.batches(loader):
            trainer.step(trainer.model(batch).mean())
            if trainer.steps == 3:
                hangs()
"""


COMPUTES = """
    for now in iter(time.monotonic, 0.0):
        assert now < until
        if not now:
            pass
"""
"""Python 3.10 and 3.11 let other threads run in the jump back of such a loop, which has no line."""


@pytest.mark.parametrize(
    ("hangs", "place"),
    [
        ("threading.Event().wait(60)", "hangs: threading.Event().wait(60)"),
        (COMPUTES, "hangs: "),
    ],
    ids=["waits", "computes"],
)
def test_a_rank_that_hangs_in_a_step_is_ended_with_the_place(tmp_path: Path, hangs: str, place: str) -> None:
    ended = stopped(
        tmp_path,
        TRAINER
        + HANGS_IN_STEP_3
        + f"""
import time

def hangs():
    until = time.monotonic() + 60
    ready()
    {hangs}
""",
        late_after=2.0,
    )
    assert ended.code == 1
    assert re.search(r"told to stop ([2-9]|\d\d) s ago", ended.failure)
    assert place in ended.failure


def test_a_main_thread_that_hangs_in_c_is_ended_too(tmp_path: Path) -> None:
    ended = stopped(
        tmp_path,
        TRAINER
        + HANGS_IN_STEP_3
        + """
import ctypes

def hangs():
    mutex = ctypes.create_string_buffer(64)
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
    ready()
    ctypes.CDLL(None).pthread_mutex_lock(mutex)  # as a collective does: no signal's handler runs
""",
        late_after=2.0,
    )
    assert ended.code == 1
    assert "hangs: " in ended.failure


def test_a_stop_saves_the_trainers_that_did_not_hear_of_it_too(tmp_path: Path) -> None:
    ended = stopped(
        tmp_path,
        """
def main(job):
    trainers = []
    for name in ("critic", "generator"):
        model, optimizer = parts(job)
        policy = smddp.CheckpointPolicy(seconds=None)
        trainers.append(smddp.Trainer(job, model, optimizer, name=name, checkpoints=policy))
        trainers[-1].resume()
    for step in range(10_000):
        for trainer in trainers:
            trainer.step(trainer.model(torch.ones(4, 1)).mean())
        if step == 3:
            ready()
        time.sleep(0.01)
""",
    )
    assert ended.code == 75, ended.log
    of_each = [
        [found.step for found in list_checkpoints(tmp_path / "run" / "checkpoints" / name)]
        for name in ("critic", "generator")
    ]
    assert all(steps and steps[-1] > 3 for steps in of_each), of_each
    assert abs(of_each[0][-1] - of_each[1][-1]) <= 1


@pytest.mark.slow
def test_storage_that_hangs_does_not_hold_a_stop(tmp_path: Path) -> None:
    ended = stopped(
        tmp_path,
        TRAINER
        + """
from smddp.checkpoint.stores.directory import DirectoryStore

def main(job):
    trainer, loader = trained(job)
    DirectoryStore.commit = lambda *_, **__: threading.Event().wait(60)
    for _ in trainer.epochs(300):
        train(trainer, loader)
        ready()
""",
        late_after=2.0,
    )
    assert ended.code == 1
    assert "told to stop" in ended.failure


def test_a_stop_after_all_is_done_changes_no_exit_code(tmp_path: Path) -> None:
    ended = stopped(
        tmp_path,
        """
import atexit

def late():
    ready()
    time.sleep(0.5)

def main(job):
    atexit.register(late)
""",
    )
    assert ended.code == 0


@pytest.mark.slow
def test_smddp_run_passes_slurms_early_signal_on(tmp_path: Path) -> None:
    ended = stopped(
        tmp_path,
        TRAINER.replace("train(trainer, loader):", "train(trainer, loader):\n    time.sleep(0.02)")
        + """
def main(job):
    trainer, loader = trained(job)
    for epoch in trainer.epochs(10_000):
        train(trainer, loader)
        if job.cluster.is_main and epoch == 1:
            ready()
""",
        by=signal.SIGUSR1,
        launcher=("-m", "smddp.cli", "run", "--processes-per-node", "2"),
    )
    assert ended.code == 75, ended.log
    assert ended.steps


@pytest.mark.slow
def test_a_stop_while_the_ranks_still_import_is_one_with_nothing_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "PYTHONHASHSEED", "0"
    )  # the server that forks ranks, imports done, leaves this to the real Python
    ended = stopped(
        tmp_path,
        "def main(job):\n    time.sleep(30)",
        launcher=("-m", "smddp.cli", "run"),
        before='print("ready", flush=True)\nimport time\ntime.sleep(1)\n',
    )
    assert (ended.code, ended.failure) == (75, ""), ended.log
