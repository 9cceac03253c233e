"""The benchmarks of training run, on a CPU and with a few steps: that they measure well is for whoever reads them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.fork_python import ForkPython

pytest.importorskip("lightning", reason="no Lightning: pip install smddp[benchmarks]")
pytest.importorskip("accelerate", reason="no Accelerate: pip install smddp[benchmarks]")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def _fork_python(fork_python: ForkPython) -> None:
    """All processes here begin with torch imported."""


def printed(*command: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
@pytest.mark.slow
def test_without_a_gpu_the_gpu_benchmark_says_so() -> None:
    assert printed("gpu.py") == ["no GPU here: nothing was measured"]


@pytest.mark.parametrize(("kind", "precisions"), [("synthetic", ["fp32", "fp16"]), ("real", ["bf16"])])
@pytest.mark.slow
def test_the_gpu_benchmark_trains_each_loop_on_a_cpu_too(kind: str, precisions: list[str]) -> None:
    lines = printed("gpu.py", "--device", "cpu", "--small", "--input", kind, "--precision", *precisions)
    measured = [line.split() for line in lines if line.startswith(kind)]
    loops = ["by", "smddp", "Fabric", "Lightning"]
    cases = [(precision, compiled) for precision in precisions for compiled in ("no", "yes")]
    assert [tuple(line[1:4]) for line in measured] == [(*case, loop) for case in cases for loop in loops]
    assert all(line[-2:] == ["-", "-"] for line in measured)  # no peak is known of a CPU, and no kernels are seen
    assert lines[-1].startswith("a checkpoint of ")


@pytest.mark.slow
def test_the_gpu_is_busy_where_any_kernel_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu import union_seconds  # type: ignore[import-not-found]

    spans = [(0.0, 5e5), (1e6, 2e6), (1.5e6, 1.75e6), (1.5e6, 2.5e6), (3e6, 4e6)]
    assert union_seconds(spans, last=4.0) == pytest.approx(3.0)
    assert union_seconds(spans, last=2.75) == pytest.approx(2.25)
    assert union_seconds([], last=1.0) == 0


@pytest.mark.slow
def test_the_overhead_is_told_of_all_and_against_the_targets() -> None:
    lines = printed("trainer_overhead.py", "--steps", "5", "--repeats", "1")
    assert sum(line.startswith(("by hand", "smddp, ", "Fabric", "Accelerate", "Lightning")) for line in lines) == 7
    assert [line.partition(": ")[0] for line in lines[-4:]] == ["off", "on", "ledger", "watched"]
    assert "below Fabric's" in lines[-3]


@pytest.mark.slow
def test_two_ranks_are_compared_with_one_and_with_bare_ddp() -> None:
    lines = printed("scaling.py", "--steps", "2", "--repeats", "1", "--width", "8")
    names = [line[:27].strip() for line in lines[3:8]]
    assert names[:4] == ["bare loop, 1 rank", "smddp, 1 rank", "bare DDP, 2 ranks", "smddp, 2 ranks"]
    assert names[4].startswith("DataParallel, ")
