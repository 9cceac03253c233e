"""Two ranks that talk over the accelerator's own backend.

On CUDA they are two hosts of `smddp run --nodes 2`, which share a GPU; elsewhere each has a device of one host. The
first test forks its ranks from smddp's own warm parent, as users do; the others fork all their processes.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from smddp.accelerator import device_kind

KIND = device_kind() or "cuda"
RANKS = ["--nodes", "2"] if KIND == "cuda" else ["--processes-per-node", "2"]
SCRIPT = Path(__file__).with_name("two_ranks_job.py")
AFTER = 3.0 if KIND == "cuda" else 8.0  # a step on the late device takes the processor that other tests use
"""The watchdog's bound."""


def run(tmp_path: Path, *options: str, fault: str = "", watch: float = 0, **environ: str) -> tuple[int, str, float]:
    """Return the exit code, what was printed, and the seconds."""
    command = [sys.executable, "-m", "smddp.cli", "run", *RANKS, "--run-dir", "run", SCRIPT]
    started = time.monotonic()
    with (tmp_path / "log").open("w+") as log:
        code = subprocess.run(
            [*command, "--fault", fault, "--watch", str(watch), *options],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SMDDP_TIMEOUT": "60", **environ},
            stdout=log,
            stderr=log,
            timeout=100,
            cwd=tmp_path,
        ).returncode
        log.seek(0)
        return code, log.read(), time.monotonic() - started


def failure(tmp_path: Path) -> str:
    return (tmp_path / "run" / "output" / "failure").read_text()


def test_two_ranks_train_resume_and_agree(tmp_path: Path) -> None:
    code, said, _ = run(tmp_path, SMDDP_MAX_STEPS="9")
    assert code == 0, said
    code, said, _ = run(tmp_path)
    assert code == 0, said
    assert "resumed at step 9" in said
    assert re.search(r"training on 2 GPUs of \d host", said), said
    results = [json.loads((tmp_path / "run" / f"result-{rank}").read_text()) for rank in range(2)]
    assert results[0] == results[1]
    assert results[0]["steps"] == 20
    assert not results[0]["races"]
    assert results[0]["backend"] == ("cpu:gloo,cuda:nccl" if KIND == "cuda" else f"cpu:gloo,{KIND}:lccl")
    assert results[0]["devices"] == ([f"{KIND}:0"] * 2 if KIND == "cuda" else [f"{KIND}:0", f"{KIND}:1"])
    assert results[0]["sum"] == results[0]["of CPU"] == 3
    assert results[0]["gathered"] == ["[0, 1]"] * 2
    assert results[0]["gathered by the device"] == (0 if KIND == "cuda" else 1)  # gloo carries the CPU's


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.parametrize(
    "options", [("--zero", "--comm-hook", "bf16"), ("--comm-hook", "powersgd"), ("--sharded",)], ids=" ".join
)
def test_a_resume_with_a_divided_optimizer_changed_gradients_or_a_divided_model_goes_on_to_the_bit(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    found = []
    for directory, parts in (("whole", [""]), ("parts", ["9", ""])):
        (tmp_path / directory).mkdir()
        for steps in parts:
            code, said, _ = run(tmp_path / directory, *options, **({"SMDDP_MAX_STEPS": steps} if steps else {}))
            assert code == 0, said
        found += [json.loads((tmp_path / directory / "run" / f"result-{rank}").read_text()) for rank in range(2)]
    assert len({each["weights"] for each in found}) == 1
    assert not [race for each in found for race in each["races"]]


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.only_on("late")
def test_a_group_without_a_backend_for_the_cpu_carries_what_is_there_through_the_device(tmp_path: Path) -> None:
    code, said, _ = run(tmp_path, "--own-group", SMDDP_MAX_STEPS="2")
    assert code == 0, said
    found = json.loads((tmp_path / "run" / "result-1").read_text())
    assert found["backend"] == "late:lccl"
    assert found["sum"] == found["of CPU"] == 3
    assert found["gathered"] == ["[0, 1]"] * 2


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param("exception", "ValueError: injected .rank 1 of 2", marks=pytest.mark.only_on("cuda")),
        ("SIGKILL", "Rank 1 of 2 .*SIGKILL"),
    ],
)
@pytest.mark.usefixtures("forked_ranks")
def test_the_rank_that_fails_is_the_reason(tmp_path: Path, fault: str, reason: str) -> None:
    code, said, seconds = run(tmp_path, fault=fault)
    assert code not in (0, 75), said
    assert re.match(reason, failure(tmp_path)), said
    assert seconds < 90


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        pytest.param(*("sleep", r"Hang \(blocking call\): rank 1 on .*time.sleep"), marks=pytest.mark.only_on("cuda")),
        ("SIGSTOP", r"Hang \(stopped process\): rank 1 on "),
        ("other collective", r"Hang \(mismatched collective\): .*rank 0 on .*rank 1 on "),
        pytest.param(
            *("endless kernel", r"Hang \(network\): all ranks have entered .*kernels of all GPUs"),
            marks=pytest.mark.only_on("cuda"),
        ),
    ],
)
@pytest.mark.usefixtures("forked_ranks")
def test_a_hang_is_named(tmp_path: Path, fault: str, reason: str) -> None:
    code, said, _ = run(tmp_path, fault=fault, watch=AFTER)
    assert code not in (0, 75), said
    assert re.match(reason, failure(tmp_path)), said


@pytest.mark.usefixtures("forked_ranks")
def test_the_collectives_are_checked_and_timed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "smddp.cli", "collectives", "--processes-per-node", "2", "--seconds", "0.01"]
    for operation in ("all_reduce", "broadcast", "all_gather"):
        command += ["--operation", operation]
    told = subprocess.run(
        [*command, "--size", "4KiB", "--json", "found.jsonl"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert {each["backend"] for each in found} == {"gloo", "nccl" if KIND == "cuda" else "lccl"}
    assert all(each["is_right"] for each in found)
