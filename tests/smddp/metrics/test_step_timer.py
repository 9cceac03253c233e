from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import smddp.metrics.step_timer
from smddp import StepTimer
from smddp.metrics.device_use import StepFlops, peak_flops
from smddp.metrics.step_timer import DeviceClock


class Gpu:
    """A stream that works through its events ten seconds behind the program, and counts who waits for it."""

    def __init__(self) -> None:
        self.program = self.done = 0.0
        self.waits = 0

    def event(self) -> SimpleNamespace:
        event = SimpleNamespace(at=None)

        def record() -> None:
            event.at = self.program

        def synchronize() -> None:
            self.waits += 1
            self.done = max(self.done, event.at)

        def elapsed_time(other: SimpleNamespace) -> float:
            assert max(event.at, other.at) <= self.done, "read before the GPU was there"
            return (other.at - event.at) * 1000

        event.record, event.synchronize, event.elapsed_time = record, synchronize, elapsed_time
        event.query = lambda: event.at <= self.done
        return event

    def works(self, seconds: float) -> None:
        self.program += seconds
        self.done = max(self.done, self.program - 10)


@pytest.fixture
def gpu() -> Gpu:
    return Gpu()


def slow_loader(gpu: Gpu, batches: int = 2) -> Iterator[int]:
    for batch in range(batches):
        gpu.works(1)
        yield batch


def loop(timer: StepTimer, gpu: Gpu, batches: int = 2) -> None:
    for _ in timer.batches(slow_loader(gpu, batches)):
        gpu.works(2)
        timer.mark("forward")
        gpu.works(4)
        timer.mark("backward")
        gpu.works(1)
        timer.mark("optimizer")
        with timer.phase("checkpoint"):
            gpu.works(1.5)
        gpu.works(0.5)


def test_the_time_of_a_gpu_is_shared_out_and_only_a_lap_waits_for_it(gpu: Gpu) -> None:
    timer = StepTimer(clock=DeviceClock(gpu.event))
    loop(timer, gpu)
    assert gpu.waits == 0
    expected = {"data": 0.1, "forward": 0.2, "backward": 0.4, "optimizer": 0.1, "checkpoint": 0.15, "other": 0.05}
    assert timer.lap() == pytest.approx({f"time_{phase}": share for phase, share in expected.items()})
    assert gpu.waits == 1
    assert timer.lap() == {}


def test_a_loop_without_laps_keeps_few_events_and_does_not_wait(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smddp.metrics.step_timer, "_MOST_PENDING", 20)
    timer = StepTimer(clock=DeviceClock(gpu.event))
    loop(timer, gpu, batches=50)
    assert gpu.waits == 0
    assert len(timer._pending) <= 20
    assert timer.lap()["time_backward"] == pytest.approx(0.4)


def test_what_is_between_two_loops_does_not_count(gpu: Gpu) -> None:
    timer = StepTimer(clock=DeviceClock(gpu.event))
    loop(timer, gpu)
    gpu.works(1000)  # an evaluation
    with timer.phase("checkpoint"):
        gpu.works(20)
    gpu.works(1000)
    loop(timer, gpu)
    assert timer.lap()["time_checkpoint"] == pytest.approx((6 + 20) / 60)


def test_a_cpu_counts_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 4.0])
    monkeypatch.setattr(smddp.metrics.step_timer, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    timer = StepTimer(torch.device("cpu"))
    timer.mark("data")
    timer.mark("forward")
    timer.mark("my own")
    shares = timer.lap()
    assert (shares["time_forward"], shares["time_my own"], shares["time_data"]) == (0.25, 0.75, 0.0)


def test_operations_are_counted_once(gpu: Gpu) -> None:
    model = nn.Linear(3, 5, bias=False)
    timer = StepTimer(clock=DeviceClock(gpu.event), flops=StepFlops(model, torch.device("cpu"), torch.float32))
    for _ in timer.batches(range(3)):
        loss = model(torch.ones(7, 3)).sum()
        timer.mark("forward")
        loss.backward()
        gpu.works(2)
        timer.mark("backward")
    # Forward and the weights' gradient: two products of 2 * 7 * 3 * 5 operations.
    assert timer.lap()["tflops"] == pytest.approx(3 * 420 / 6 / 1e12)
    loop(timer, gpu)
    assert timer.lap()["tflops"] == pytest.approx(2 * 420 / 20 / 1e12)


def test_a_batch_that_is_broken_off_leaves_nothing_behind(gpu: Gpu) -> None:
    model = nn.Linear(3, 5)
    timer = StepTimer(flops=StepFlops(model, torch.device("cpu"), torch.float32))
    for _ in timer.batches(range(3)):
        break
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
    assert "tflops" not in timer.lap()


def test_a_compiled_model_is_not_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    model = nn.Sequential(nn.Linear(3, 5))
    model[0].compile(backend="eager")
    flops = StepFlops(model, torch.device("cpu"), torch.float32)
    assert "operations can't be counted under torch.compile" in caplog.text
    flops.begin_micro_batch()
    flops.end_micro_batch()
    assert flops.rates(1.0) == {}


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("Tesla V100-SXM2-16GB", torch.float16, 125e12),
        ("Tesla T4", torch.float16, 65e12),
        ("NVIDIA A10G", torch.bfloat16, 70e12),
        ("NVIDIA L4", torch.float32, 30.3e12),
        ("NVIDIA L40S", torch.bfloat16, 362e12),
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312e12),
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.5e12),
        ("NVIDIA H200", torch.float16, 989.5e12),
        ("NVIDIA B200", torch.bfloat16, 2250e12),
        ("Tesla V100-SXM2-16GB", torch.bfloat16, None),  # it has no bf16
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", torch.bfloat16, None),
        ("NVIDIA A10", torch.bfloat16, None),
    ],
)
def test_peaks_are_known_by_the_names_that_cuda_gives(name: str, dtype: torch.dtype, peak: float | None) -> None:
    assert peak_flops(name, dtype) == peak


def test_float32_counts_as_tf32_where_that_is_allowed() -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert peak_flops("NVIDIA H100 PCIe", torch.float32) == 378e12
        assert peak_flops("Tesla T4", torch.float32) == 8.1e12
    finally:
        torch.set_float32_matmul_precision(before)
