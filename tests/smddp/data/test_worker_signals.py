"""A SIGTERM to a whole process group ends no worker before its rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smddp.checkpoint import list_checkpoints
from smddp.process.preemption import STOP_SIGNALS

PROGRAM = """
import multiprocessing
import os
import sys
import time
import torch
from torch import nn
from torch.utils.data import Dataset
import smddp

class Slow(Dataset):
    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.ones(3)

def main(job):
    model = nn.Linear(3, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1), log_every=10)
    loader = LOADER
    for _ in trainer.epochs(1):
        for batch in trainer.batches(loader):
            trainer.step(trainer.model(batch).mean())
            if trainer.steps == 5:
                print(*[child.pid for child in multiprocessing.active_children()], flush=True)

if __name__ == "__main__":
    smddp.run(main)
"""

AT_EXIT = """
import multiprocessing
import torch
from torch.utils.data import DataLoader
from smddp.data.worker_signals import OutliveStop

batches = iter(DataLoader(range(100), num_workers=1, worker_init_fn=OutliveStop()))
print(next(batches), flush=True)
kept = [batches]  # a circle: nothing but the end of the process collects it
kept.append(kept)
"""

COLLECTED = """
import gc
import multiprocessing
import time
import torch
from torch.utils.data import DataLoader
from smddp.data.worker_signals import OutliveStop

batches = iter(DataLoader(range(100), num_workers=1, worker_init_fn=OutliveStop()))
next(batches)
kept = [batches]
kept.append(kept)
del batches, kept
gc.collect()  # ends a circle's queue before its iterator, whose message to the worker is lost
until = time.monotonic() + 20
while multiprocessing.active_children() and time.monotonic() < until:
    time.sleep(0.01)
print("workers left:", len(multiprocessing.active_children()), flush=True)
"""

PERSISTENT = """
import atexit
import multiprocessing
import time
import torch
from torch.utils.data import DataLoader
from smddp.data.worker_signals import OutliveStop

def last():
    time.sleep(0.5)
    print("workers left:", len(multiprocessing.active_children()), flush=True)

if __name__ == "__main__":
    PREPARATION
    atexit.register(last)
    loaders = [
        DataLoader(range(8), num_workers=1, persistent_workers=True, multiprocessing_context="METHOD",
                   worker_init_fn=OutliveStop())
        for _ in range(2)
    ]
    print(len(list(loaders[0])), next(iter(loaders[1])), flush=True)
"""


FORKSERVER = "trainer.loader(Slow(), batch_size=4, num_workers=2, multiprocessing_context='forkserver')"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def start(tmp_path: Path, loader: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Starts a rank, and returns it with the numbers of its two workers once it trains."""
    script = tmp_path / "script.py"
    script.write_text(PROGRAM.replace("LOADER", loader))
    environ = {**os.environ, "SMDDP_RUN_DIR": str(tmp_path / "run")}
    rank = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environ, start_new_session=True
    )
    assert rank.stdout is not None
    workers = [int(pid) for pid in rank.stdout.readline().split()]
    assert len(workers) == 2
    return rank, workers


def await_end(workers: list[int]) -> None:
    deadline = time.monotonic() + 60  # a worker looks for its parent every five seconds
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))


@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize(
    "loader",
    [
        "trainer.loader(Slow(), batch_size=4, num_workers=2)",
        "torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2)",
    ],
)
@pytest.mark.slow
def test_sigterm_to_the_process_group_is_a_stop_with_a_checkpoint(tmp_path: Path, loader: str) -> None:
    rank, workers = start(tmp_path, loader)
    for pid in [*workers, rank.pid]:  # as a signal to the group arrives: workers first is the worst case
        os.kill(pid, signal.SIGTERM)
    assert rank.wait(60) == 75
    (checkpoint,) = list_checkpoints(tmp_path / "run" / "checkpoints")
    assert checkpoint.step >= 5
    await_end(workers)


@pytest.mark.usefixtures("fork_python")
def test_workers_of_a_loader_that_is_never_closed_do_not_hold_up_the_exit(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(AT_EXIT)
    subprocess.run([sys.executable, str(script)], check=True, timeout=20)


@pytest.mark.parametrize(
    "method",
    ["fork", pytest.param("spawn", marks=pytest.mark.slow), pytest.param("forkserver", marks=pytest.mark.slow)],
)
def test_persistent_workers_end_in_silence_and_leave_the_other_callbacks_alone(tmp_path: Path, method: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(PERSISTENT.replace("METHOD", method).replace("PREPARATION", "pass"))
    ended = subprocess.run([sys.executable, str(script)], check=True, timeout=90, capture_output=True, text=True)
    assert ended.stdout == "8 tensor([0])\nworkers left: 0\n"
    assert ended.stderr == ""


@pytest.mark.slow
def test_a_fork_server_that_a_stop_would_end_is_told(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    started = "import multiprocessing.forkserver as server; server.ensure_running()"
    script.write_text(PERSISTENT.replace("METHOD", "forkserver").replace("PREPARATION", started))
    ended = subprocess.run([sys.executable, str(script)], check=True, timeout=90, capture_output=True, text=True)
    assert ended.stderr.count("fork server was started before smddp could prepare it") == 2  # once a loader


@pytest.mark.slow
def test_the_fork_server_and_its_workers_outlive_a_stop(tmp_path: Path) -> None:
    rank, workers = start(tmp_path, FORKSERVER)
    os.killpg(rank.pid, signal.SIGTERM)
    assert rank.wait(60) == 75
    assert list_checkpoints(tmp_path / "run" / "checkpoints")[0].step >= 5
    await_end(workers)


@pytest.mark.slow
def test_workers_of_the_fork_server_end_with_a_rank_that_is_killed(tmp_path: Path) -> None:
    rank, workers = start(tmp_path, FORKSERVER)
    rank.kill()
    rank.wait()
    await_end(workers)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_what_the_fork_server_starts_is_ended_by_a_signal(number: int) -> None:
    program = f"""
import multiprocessing, os, time
from smddp.process import fork_server
fork_server.outlive_stop()
child = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(60,))
child.start()
os.kill(child.pid, {number})
child.join()
print(child.exitcode)
"""
    assert int(subprocess.check_output([sys.executable, "-c", program], timeout=60)) == -number


def test_a_daemon_that_a_script_has_forked_does_not_hold_the_end_of_its_rank(
    run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    program = """
import multiprocessing, time
import smddp

def main(job):
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(200,), daemon=True).start()

if __name__ == "__main__":
    smddp.run(main)
"""
    (rank,) = run_ranks(program, [{"SMDDP_RUN_DIR": str(tmp_path / "run"), "FORK_PYTHON_FINALIZES": "1"}])
    assert rank.code == 0, rank


def test_workers_end_with_a_loader_that_is_collected_as_garbage(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(COLLECTED)
    command = [sys.executable, str(tmp_path / "script.py")]
    ended = subprocess.run(command, check=True, timeout=90, capture_output=True, text=True)
    assert ended.stdout == "workers left: 0\n"
