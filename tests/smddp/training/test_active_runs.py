"""Jobs of two ranks under ``smddp run``, whose checkpoints are slow, fail, or are under way when something happens."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smddp.checkpoint import list_checkpoints
from tests.torture.s3_server import Server, s3_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("fork_python")]

HEAD = """
import errno, os, sys, time
import torch
from torch import nn
import smddp
from smddp.checkpoint.stores.directory import DirectoryStore

rank = int(os.environ["RANK"])
write = DirectoryStore.write

def say(text):
    sys.stdout.write(f"{text}\\n")
    sys.stdout.flush()

def train(job, *, epochs=1, steps=40, seconds=0.02, **policy):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 300_000), nn.Linear(300_000, 1))  # large enough to be shared
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)
    trainer = smddp.Trainer(job, model, optimizer, checkpoints=smddp.CheckpointPolicy(**policy))
    loader = trainer.loader(torch.utils.data.TensorDataset(torch.ones(4 * steps, 3)), batch_size=4)
    for epoch in trainer.epochs(epochs):
        for (inputs,) in trainer.batches(loader):
            trainer.step(trainer.model(inputs).square().mean())
            yield trainer
            time.sleep(seconds)
"""

SLOW = """
def slow(self, step, directory, name, content):
    say(f"rank {rank} writes step {step}")
    time.sleep(0.1)
    write(self, step, directory, name, content)

DirectoryStore.write = slow
"""


class Running:
    """A job, its log as it grows, and where its checkpoints are."""

    def __init__(self, directory: Path, body: str, *, ranks: int, variables: dict[str, str]) -> None:
        script = directory / "train.py"
        script.write_text(f"{HEAD}\n{body}\nsmddp.run(main)\n")
        self.run_dir = directory / "run"
        self._log: list[str] = []
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "smddp.cli",
                "run",
                "--processes-per-node",
                str(ranks),
                "--run-dir",
                str(self.run_dir),
                str(script),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def wait_for(self, pattern: str) -> re.Match[str]:
        deadline = time.monotonic() + 120
        while (found := re.search(pattern, self.log)) is None:
            assert time.monotonic() < deadline, self.log
            assert self._process.poll() is None, self.log
            time.sleep(0.01)
        return found

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        try:
            return self._process.wait(timeout=200)
        finally:
            self.kill()

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join()

    @property
    def log(self) -> str:
        return "".join(self._log)

    def steps_in(self, place: Path | str) -> list[int]:
        found = list_checkpoints(place)
        assert [info.reason for info in found if not info.valid] == []
        return [info.step for info in found]

    @property
    def failure(self) -> str:
        return (self.run_dir / "output" / "failure").read_text()

    @property
    def steps(self) -> list[int]:
        return self.steps_in(self.run_dir / "checkpoints")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._log.append(line)


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs: list[Running] = []

    def begin(body: str, *, ranks: int = 2, **variables: str) -> Running:
        jobs.append(Running(tmp_path, body, ranks=ranks, variables=variables))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()


def test_a_stop_while_a_save_is_under_way_is_saved_too_and_resumed(start: Start) -> None:
    body = "def main(job: smddp.Job):\n    for _ in train(job, steps=100, every=10): pass"
    job = start(SLOW + body)
    job.wait_for("rank 1 writes step 10")
    job.stop()
    assert job.end() == 75, job.log
    stopped = re.search(r"stopped at step (\d+), in epoch 1: the checkpoint is (\S+)", job.log)
    assert stopped is not None, job.log
    assert job.steps[-1] == int(stopped[1]), job.log
    assert Path(stopped[2], "manifest.json").exists()
    assert "CRITICAL" not in job.log
    assert "stopped on request, exit code 75: run it again and it resumes" in job.log

    again = start(body.replace("steps=100, every=10", "steps=100, seconds=0"))
    assert again.end() == 0, again.log
    assert f"resumed at step {stopped[1]}, in epoch 1" in again.log


def test_a_good_end_waits_for_the_last_checkpoint(start: Start) -> None:
    job = start(
        # On the log's own stream: between two streams of a rank the launcher keeps no order.
        SLOW + "def main(job: smddp.Job):\n    for _ in train(job, steps=7): pass\n"
        "    rank or sys.stderr.write('the loop is over\\n')"
    )
    assert job.end() == 0, job.log
    assert job.steps == [7]
    assert job.log.index("saved ") < job.log.index("the loop is over")


def test_a_loop_that_was_left_early_ends_with_what_it_saved(start: Start) -> None:
    body = "def main(job: smddp.Job):\n    for trainer in train(job, every=5):\n        if trainer.steps == 6: break"
    job = start(SLOW + body)
    assert job.end() == 0, job.log
    assert job.steps == [5]


def test_an_exception_is_the_one_reported_and_lets_the_save_under_way_end(start: Start) -> None:
    body = """
def main(job: smddp.Job):
    for trainer in train(job, every=5):
        if trainer.steps == 7 and rank == 1: raise ValueError("label 41")
"""
    job = start(SLOW + body)
    assert job.end() == 1, job.log
    assert job.failure.startswith("ValueError: label 41 (rank 1 of 2 on ")
    assert job.steps == [5], job.log


FULL = """
def full(self, step, directory, name, content):
    if rank == {rank} and step in {steps}: raise OSError(errno.ENOSPC, "No space left on device")
    write(self, step, directory, name, content)

DirectoryStore.write = full
"""


def test_failures_that_are_tolerated_are_errors_in_the_log_and_training_goes_on(start: Start) -> None:
    broken = FULL.format(rank=1, steps=[10, 20])
    job = start(broken + "def main(job: smddp.Job):\n    for _ in train(job, steps=35, every=10): pass")
    assert job.end() == 0, job.log
    assert job.steps == [30, 35]
    errors = [line for line in job.log.splitlines() if "ERROR" in line]
    assert len(errors) == 2
    for error, step, failures in zip(errors, (10, 20), (1, 2), strict=True):
        assert " ERROR rank 0: " in error
        assert f"step-{step:012}" in error
        assert "rank 1: OSError: [Errno 28] No space left on device" in error
        assert f"{failures} of 2" in error


def test_a_failed_last_save_is_made_again_by_all_ranks(start: Start) -> None:
    broken = """
full_at = [7]

def full(self, step, directory, name, content):
    if rank == 1 and step in full_at:
        full_at.clear()
        raise OSError(errno.ENOSPC, "No space left on device")
    write(self, step, directory, name, content)

DirectoryStore.write = full
"""
    job = start(broken + "def main(job: smddp.Job):\n    for _ in train(job, steps=7): pass")
    assert job.end() == 0, job.log
    assert job.steps == [7]
    assert "failure 1 of 2 in a row" in job.log
    assert job.log.count("the checkpoint of step 7 is made again") == 1


def test_the_one_failure_too_many_ends_the_job_with_its_own_traceback(start: Start) -> None:
    broken = FULL.format(rank=1, steps="range(20, 100)")
    body = "def main(job: smddp.Job):\n    for _ in train(job, steps=80, every=10, tolerate_failures=1): pass"
    job = start(broken + body)
    assert job.end() == 1, job.log
    assert job.steps == [10]
    assert "step-000000000030" in job.failure
    assert "rank 1: OSError: [Errno 28] No space left on device" in job.failure
    assert "(rank 1 of 2 on" in job.failure
    assert "train.py" in job.failure
    assert "ended without a word" not in job.log


def test_a_full_disk_ends_the_job_at_the_step_after(start: Start) -> None:
    """A limit on the size of files, which is what a user without rights has for a full disk."""
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
    body = "def main(job: smddp.Job):\n    for trainer in train(job, steps=500, every=3, tolerate_failures=0): pass"
    job = start(limit + body)
    assert job.end() == 1, job.log
    assert "step-000000000003" in job.failure
    assert "File too large" in job.failure
    assert job.steps == []


def test_a_stop_whose_checkpoint_fails_is_no_resumable_end(start: Start) -> None:
    broken = FULL.format(rank=1, steps="range(11, 1000)")
    body = "def main(job: smddp.Job):\n    for _ in train(job, steps=500, every=10): pass"
    job = start(broken + body)
    job.wait_for("saved .*step-000000000010")
    job.stop()
    assert job.end() == 1, job.log
    assert re.search(r"told to stop at step \d+, and its checkpoint cannot be relied on: .*No space left", job.failure)
    assert re.search(r"the next attempt resumes from \S+/step-000000000010 ", job.failure), job.failure
    assert job.steps == [10]


def test_a_stop_whose_checkpoint_takes_too_long_is_no_resumable_end(start: Start) -> None:
    hanging = SLOW.replace("time.sleep(0.1)", "time.sleep(600)")
    body = """
from smddp.checkpoint.save import background_saves
from smddp.training import stop_deadline
stop_deadline.STOP_SECONDS, stop_deadline.LEAST_SECONDS, background_saves.GRACE_SECONDS = 3, 1, 1
def main(job: smddp.Job):
    for _ in train(job, steps=500, every=10): pass
"""
    job = start(hanging + body)
    job.wait_for("rank 1 writes step 10")
    asked = time.monotonic()
    job.stop()
    assert job.end() == 1, job.log
    assert time.monotonic() - asked < 40
    assert re.search("it was not durable after [123] s; the next attempt begins anew", job.failure), job.failure
    assert job.steps == []


def test_a_place_that_cannot_be_written_to_is_an_error_at_the_start(start: Start, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    body = """
def main(job: smddp.Job):
    os.rmdir(job.checkpoint_dir) if rank == 0 else time.sleep(1)
    if rank == 0: job.checkpoint_dir.touch()  # a file in its place: rights do not hold root back
    for _ in train(job): say("a step was " + "taken")
"""
    job = start(body)
    assert job.end() == 1, job.log
    assert str(tmp_path / "run" / "checkpoints") in job.failure
    assert "smddp.checkpoint.stores.store.StoreError" in job.failure or "CheckpointError" in job.failure
    assert "a step was taken" not in job.log
    assert job.log.count("CheckpointError: ") >= 2  # on every rank


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.mark.seaweedfs
def test_where_checkpoints_go_to_s3_a_stop_ends_there_and_a_resume_begins_there(
    start: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.client().create_bucket(Bucket="runs")
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    body = "def main(job: smddp.Job):\n    for _ in train(job, steps=100, every=10): say('a step')"
    job = start(body, SMDDP_CHECKPOINT_S3_URI="s3://runs/7")
    job.wait_for("saved s3://runs/7/step-000000000010")
    job.stop()
    assert job.end() == 75, job.log
    stopped = re.search(r"stopped at step (\d+), in epoch 1: the checkpoint is s3://runs/7/step-(\d{12})", job.log)
    assert stopped is not None, job.log
    assert int(stopped[1]) == int(stopped[2]) == job.steps_in("s3://runs/7")[-1]
    assert not (job.run_dir / "checkpoints").exists()
    written = server.client().list_objects_v2(Bucket="runs", Prefix=f"7/step-{stopped[2]}")["Contents"]
    assert any("model-00002-of-00002" in item["Key"] for item in written)  # every rank writes to S3

    again = start(body.replace("steps=100, every=10", "steps=100, seconds=0"), SMDDP_CHECKPOINT_S3_URI="s3://runs/7")
    assert again.end() == 0, again.log
    assert f"resumed at step {stopped[1]}, in epoch 1" in again.log
    assert again.steps_in("s3://runs/7")[-1] == 100


@pytest.mark.seaweedfs
def test_a_bucket_that_is_missing_is_an_error_at_the_start(
    start: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    job = start(
        "def main(job: smddp.Job):\n    for _ in train(job): say('a step was ' + 'taken')",
        SMDDP_CHECKPOINT_S3_URI="s3://no-such-bucket/7",
    )
    assert job.end() == 1, job.log
    assert "no-such-bucket" in job.failure
    assert "a step was taken" not in job.log


def test_trackers_hear_that_a_run_failed_on_another_rank(start: Start) -> None:
    body = "def main(job: smddp.Job):\n    for trainer in train(job):\n        if rank == trainer.steps / 10: 1 / 0"
    job = start(body)
    assert job.end() == 1, job.log
    assert job.failure.startswith("ZeroDivisionError: division by zero (rank 1 of 2 on"), job.log
    *_, last = (job.run_dir / "output" / "data" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(last)["status"] == "failed"
