"""Two ranks of which one hangs: the job ends with the culprit, its line and its kind, not with the rank that waits."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.goodput import read_account

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("fork_python")]

HAS_HOOKS = hasattr(dist.ProcessGroup, "register_pre_hook")
"""Without PyTorch's hooks, nobody knows on a CPU who waits in which collective."""
with_hooks = pytest.mark.skipif(not HAS_HOOKS, reason="this PyTorch has no hooks")

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
import smddp
from smddp.distributed import first_failure
from smddp.process import process_tree
from smddp.watch import position, watchdog

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        if FAULT == "loader" and dist.get_rank() == CULPRIT and index > 30:
            time.sleep(600)  # the loader
        return torch.randn(8), torch.randint(0, 3, ())

def main(job):
    model = torch.nn.Linear(8, 3)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = trainer.loader(Data(), batch_size=8)
    group = dist.new_group([0, 1], group_desc="pair") if FAULT.startswith("group") else None
    for epoch in trainer.epochs(1):
        for step, (x, y) in enumerate(trainer.batches(loader)):
            loss = torch.nn.functional.cross_entropy(trainer.model(x), y)
            if FAULT == "type" and step == 5:
                for _ in range(400):
                    dist.all_reduce(torch.ones(2, dtype=torch.int32 if dist.get_rank() == CULPRIT else torch.float32))
                    time.sleep(0.05)
            is_now = step == 5 and dist.get_rank() == CULPRIT
            if group is not None and not (is_now and FAULT == "group skip"):
                dist.all_reduce(torch.ones(3 if is_now and FAULT == "group shape" else 2), group=group)
            if FAULT == "pause" and step == 5 and dist.get_rank() != CULPRIT:
                open("waits", "w").close()
            if step == 5 and dist.get_rank() == CULPRIT:
                fault()
            trainer.step(loss)

def fault():
    if "ONCE" in os.environ and os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
        return
    if FAULT == "sleep":
        time.sleep(600)  # the call
    if FAULT == "pause":
        while not os.path.exists("waits"):
            time.sleep(0.01)
        began = time.monotonic()
        time.sleep(10)
        print(f"paused for {time.monotonic() - began} s", flush=True)
    if FAULT == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if FAULT == "other":
        dist.barrier()
    if FAULT == "shape":
        dist.all_reduce(torch.ones(3))
    if FAULT == "busy":
        until = time.monotonic() + 14
        while time.monotonic() < until:
            pass

FAULT, CULPRIT = os.environ["FAULT"], int(os.environ["CULPRIT"])
first_failure._HEED_SECONDS = 0.5
position._NETWORK_PHASES = frozenset()  # other tests use this host's network
if "HOSTS" in os.environ:
    namespace = f"{process_tree.namespace()} of rank {os.environ['RANK']}"  # as on two hosts
    process_tree.namespace = lambda: namespace
    watchdog._COMPARE_SECONDS = 3.0
patience = float(os.environ.get("PATIENCE", "0"))
smddp.run(main, watch=smddp.Watch(after=4, patience=patience, on_hang=os.environ.get("ON_HANG", "fail")))
"""


def run(directory: Path, fault: str, culprit: int, *, restarts: int = 0, **environ: str) -> tuple[int, str, str]:
    """Return the exit code, the failure's reason and the log of a job of two ranks."""
    (directory / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", "--run-dir", "run"]
    command += ["--max-restarts", str(restarts), "train.py"]
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={**os.environ, "FAULT": fault, "CULPRIT": str(culprit), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        log, _ = process.communicate(timeout=200)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    failure = directory / "run" / "output" / "failure"
    return process.returncode, failure.read_text() if failure.exists() else "", log


@pytest.mark.parametrize(
    ("fault", "culprit", "kind", "line"),
    [
        ("sleep", 1, "blocking call", "time.sleep(600)  # the call"),
        ("sleep", 0, "blocking call", "time.sleep(600)  # the call"),
        ("loader", 1, "loader stall", "time.sleep(600)  # the loader"),
        ("stop", 1, "stopped process", "SIGSTOP"),
        ("stop", 0, "stopped process", "SIGSTOP"),
    ],
)
def test_the_rank_that_hangs_is_the_reason(tmp_path: Path, fault: str, culprit: int, kind: str, line: str) -> None:
    code, reason, log = run(tmp_path, fault, culprit)
    assert code != 0
    assert reason.startswith(f"Hang ({kind}): rank {culprit} on "), log
    assert line in reason
    assert (f"rank {1 - culprit} waits for it in " in reason) is HAS_HOOKS
    assert log.count(reason.partition(": ")[2].splitlines()[0]) == 1, log
    report = json.loads((tmp_path / "run" / "output" / "hang.json").read_text())
    assert report["verdict"]["ranks"] == [culprit]
    assert {each["rank"] for each in report["positions"]} == {0, 1}


@with_hooks
@pytest.mark.parametrize(("fault", "other"), [("other", "barrier"), ("shape", "all_reduce of float32 [3]")])
def test_ranks_in_different_collectives_are_both_named(tmp_path: Path, fault: str, other: str) -> None:
    code, reason, log = run(tmp_path, fault, 1)
    assert code != 0
    assert reason.startswith("Hang (mismatched collective): "), log
    assert "rank 0 on localhost is in all_reduce of float32" in reason
    assert f"rank 1 on localhost is in {other} at " in reason


@with_hooks
@pytest.mark.parametrize(
    ("fault", "kind", "places"),
    [
        (
            "group shape",
            "mismatched collective",
            ("all_reduce of float32 [2] in the group pair of ranks 0, 1", "[3] in"),
        ),
        (
            "group skip",
            "deadlock",
            ("all_reduce of float32 [2] in the group pair of ranks 0, 1", "all_reduce of float32"),
        ),
    ],
)
def test_a_collective_of_another_group_is_compared_and_named(
    tmp_path: Path, fault: str, kind: str, places: tuple[str, str]
) -> None:
    code, reason, log = run(tmp_path, fault, 1)
    assert code != 0
    assert reason.startswith(f"Hang ({kind}): "), log
    first, second = reason.split("; rank 1 ")
    assert places[0] in first
    assert places[1] in second


@with_hooks
def test_hosts_whose_ranks_compute_with_different_collectives_end_and_are_named(tmp_path: Path) -> None:
    code, reason, log = run(tmp_path, "type", 1, HOSTS="2")
    assert code != 0
    assert reason.startswith("Hang (mismatched collective): rank 1 on localhost called other collectives than"), log
    assert "of the default group: what they have computed since is wrong" in reason


@with_hooks
def test_a_rank_that_computes_for_long_ends_nothing(tmp_path: Path) -> None:
    code, reason, log = run(tmp_path, "busy", 1)
    assert (code, reason) == (0, ""), log
    assert "slow: rank 1 on localhost has been busy" in log


def test_a_rank_that_continues_in_time_ends_nothing_and_its_hang_is_in_the_ledger(tmp_path: Path) -> None:
    code, reason, log = run(tmp_path, "pause", 1, PATIENCE="120")
    assert (code, reason) == (0, ""), log
    assert "hang: rank 1 on localhost has not moved for " in log
    assert "The job ends in 120 s, unless it continues." in log
    account = read_account(DirectoryStore(tmp_path / "run" / "checkpoints"))
    assert [each.end for each in account.attempts] == ["finished"]
    [pause] = re.findall(r"paused for (\S+) s", log)
    assert -2.5 < account.seconds["hang"] - float(pause) < 20, account.seconds  # all of it, not from the verdict on


@pytest.mark.parametrize("fault", ["sleep", "stop"])
def test_the_ranks_of_a_job_that_hangs_restart(tmp_path: Path, fault: str) -> None:
    code, reason, log = run(tmp_path, fault, 1, restarts=2, ON_HANG="restart", ONCE="1")
    assert (code, reason) == (0, ""), log
    assert log.count("restarting all ranks") == 1
    report = json.loads((tmp_path / "run" / "output" / "earlier_hang.json").read_text())
    assert report["verdict"]["ranks"] == [1]
    assert not (tmp_path / "run" / "output" / "hang.json").exists()
