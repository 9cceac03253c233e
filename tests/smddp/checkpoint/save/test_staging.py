"""The copy has the exact bytes of the files, whatever the tensors are like, and stays as it was when they change."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import pytest
import safetensors.torch
import torch

from smddp.checkpoint.format.tensors import DTYPES
from smddp.checkpoint.save import device_copies, staging
from smddp.checkpoint.save.device_copies import DeviceCopies
from smddp.checkpoint.save.staging import StagedFile, Staging
from tests.smddp.checkpoint.save.stand_in_gpu import StandInGpu, on_gpu

STRANGE: dict[str, Callable[[], torch.Tensor]] = {
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "every second": lambda: torch.arange(20)[::2],
    "expanded": lambda: torch.tensor([1.5]).expand(5, 3),
    "channels last": lambda: torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
    "without dimensions": lambda: torch.tensor(3.25),
    "empty": lambda: torch.empty(0, 3),
    "wants a gradient": lambda: torch.rand(3, requires_grad=True) * 2,
    "a parameter": lambda: torch.nn.Parameter(torch.rand(3)),
    "in the middle of a storage": lambda: torch.arange(10, dtype=torch.int16)[3:7],
}


def read(file: StagedFile) -> dict[str, torch.Tensor]:
    """What the safetensors package reads."""
    return dict(safetensors.torch.load(bytes(file.content)))


def staged(memory: Staging, copies: DeviceCopies, tensors: dict[str, torch.Tensor]) -> StagedFile:
    """Launch all copies of a file. Those of a GPU are complete after `copies.wait()`."""
    with copies.launching():
        (file,) = memory.copy({"x.safetensors": tensors})
    return file


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
def test_strange_tensors_are_copied_by_their_values(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    (file,) = Staging().copy({"x.safetensors": {"before": torch.ones(1), "x": tensor, "y": torch.ones(3)}})
    found = read(file)
    assert torch.equal(found["x"], tensor.detach().resolve_conj().resolve_neg())
    assert found["x"].shape == tensor.shape
    assert torch.equal(found["y"], torch.ones(3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_copied_bit_by_bit(dtype: torch.dtype) -> None:
    values = torch.randint(0, 255, (7 * dtype.itemsize,), dtype=torch.uint8)
    tensor = values.view(dtype) if dtype is not torch.bool else values > 100
    (file,) = Staging().copy({"x.safetensors": {"x": tensor, "odd": torch.ones(3, dtype=torch.uint8)}})
    (entry,) = [each for each in file.layout.entries if each.name == "x"]
    assert bytes(file.content[entry.start : entry.start + entry.size]) == bytes(tensor.view(torch.uint8).tolist())
    if dtype not in (torch.float8_e4m3fnuz, torch.float8_e5m2fnuz):  # the package reads them since 0.5
        assert torch.equal(read(file)["x"].view(torch.uint8), tensor.view(torch.uint8))


def test_training_may_change_the_tensors_as_soon_as_they_are_copied() -> None:
    tensors = {"a": torch.arange(1000.0), "b": torch.ones(5)}
    (file,) = Staging().copy({"x.safetensors": tensors})
    for tensor in tensors.values():
        tensor.zero_()
    assert torch.equal(read(file)["a"], torch.arange(1000.0))
    assert torch.equal(read(file)["b"], torch.ones(5))


def test_the_same_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    real = staging.allocate
    monkeypatch.setattr(staging, "allocate", lambda size, **options: (taken.append(size), real(size, **options))[1])
    memory = Staging()
    for number in range(4):
        memory.copy({"x.safetensors": {"x": torch.full((1000,), number)}, "y.safetensors": {"y": torch.ones(3)}})
    assert len(taken) == 1
    smaller = {"x.safetensors": {"x": torch.full((10,), 7.0)}}
    (file,) = memory.copy(smaller)
    assert torch.equal(read(file)["x"], smaller["x.safetensors"]["x"])
    assert len(taken) == 1


def test_a_state_that_grew_gets_more_memory_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    memory = Staging()
    memory.copy({"x.safetensors": {"x": torch.ones(10)}})
    with caplog.at_level(logging.DEBUG):
        files = memory.copy({"x.safetensors": {"x": torch.ones(10), "moment": torch.full((500_000,), 2.0)}})
    assert "taking 2.0 MB of plain memory to save from" in caplog.text
    assert torch.equal(read(files[0])["moment"], torch.full((500_000,), 2.0))


@pytest.mark.parametrize(
    "changed", [torch.ones(6), torch.ones(2, 6), torch.ones(3, 4, dtype=torch.int32), torch.ones(3, 4)]
)
def test_a_state_that_changed_its_form_is_laid_out_anew(changed: torch.Tensor) -> None:
    memory = Staging()
    memory.copy({"x.safetensors": {"x": torch.zeros(3, 4), "y": torch.zeros(2)}})
    (file,) = memory.copy({"x.safetensors": {"x": changed, "z": torch.ones(2)}})
    found = read(file)
    assert found.keys() == {"x", "z"}
    assert torch.equal(found["x"], changed)


def test_what_was_prepared_is_what_is_used() -> None:
    files = {"x.safetensors": {"x": torch.arange(100_000)}, "y.safetensors": {"y": torch.ones(3)}}
    memory = Staging()
    memory.prepare(files)
    x, y = memory.copy(files)
    assert torch.equal(read(x)["x"], torch.arange(100_000))
    assert torch.equal(read(y)["y"], torch.ones(3))


def test_a_rank_that_writes_nothing_needs_no_memory() -> None:
    memory = Staging()
    memory.prepare({})
    assert memory.copy({}) == []


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> StandInGpu:
    stand_in = StandInGpu()
    stand_in.install(monkeypatch)
    return stand_in


def test_copies_from_a_gpu_are_timed_on_its_stream_and_not_waited_for(gpu: StandInGpu) -> None:
    gpu.copy_seconds = 100.0
    copies = DeviceCopies()
    tensors = {"x": on_gpu(torch.arange(10.0)), "y": torch.arange(3), "z": on_gpu(torch.arange(5.0))}
    file = staged(Staging(copies), copies, tensors)

    assert gpu.calls == ["record", "copy", "copy", "record"]
    assert copies.wait() == pytest.approx(100.0, abs=20)
    assert gpu.calls[4:] == ["synchronize"]
    assert torch.equal(read(file)["x"], torch.arange(10.0))


def test_gpu_copies_that_end_while_the_cpu_copies_hold_nothing_up(
    gpu: StandInGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu.copy_seconds = 0.01
    monkeypatch.setattr(staging, "copy_spans", lambda spans: time.sleep(0.02))
    copies = DeviceCopies()
    staged(Staging(copies), copies, {"x": on_gpu(torch.arange(10.0))})
    assert copies.wait() == 0


def test_memory_that_cannot_be_pinned_is_used_as_it_is_and_no_later_kernel_is_blamed(
    gpu: StandInGpu, caplog: pytest.LogCaptureFixture
) -> None:
    gpu.register_code = 2
    copies = DeviceCopies()
    memory = Staging(copies)
    for number in range(2):
        file = staged(memory, copies, {"x": on_gpu(torch.full((10,), float(number)))})
        copies.wait()
        assert torch.equal(read(file)["x"], torch.full((10,), float(number)))
    assert gpu.last_error == 0
    assert caplog.messages == ["could not pin 0.0 MB (CUDA error 2): saving takes longer"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("has_room", [False, True])
def test_a_save_stalls_a_gpu_only_where_it_has_no_room(has_room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_room:
        monkeypatch.setattr(device_copies, "usable_device_memory", lambda device: None)
    copies = DeviceCopies()
    memory, tensor = Staging(copies), torch.zeros(250_000_000, device="cuda")
    for _ in range(2):
        started = time.perf_counter()
        staged(memory, copies, {"x": tensor})
        asked = time.perf_counter() - started
        stalled = asked + copies.wait()
        waited = time.perf_counter() - started
    assert waited > 0.001  # 1 GB, which no bus moves faster
    assert stalled < 0.3 * waited if has_room else stalled == pytest.approx(waited, rel=0.5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_tensors_of_a_gpu_are_copied_in_the_order_of_its_stream() -> None:
    copies = DeviceCopies()
    memory = Staging(copies)
    for number in range(5):
        tensor = torch.zeros(20_000_000, device="cuda")
        tensor += number  # not computed yet when the copy is asked for
        file = staged(memory, copies, {"x": tensor, "t": tensor[:1000].reshape(10, 100).t()})
        tensor.fill_(-1)  # must come after it
        copies.wait()
        assert torch.equal(read(file)["x"], torch.full((20_000_000,), float(number)))
        assert torch.equal(read(file)["t"], torch.full((100, 10), float(number)))
