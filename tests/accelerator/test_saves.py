"""The copies of a save: complete, unchanged, felt only where the device has no room, and never out of its memory."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterator
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from smddp.accelerator import device_kind
from smddp.checkpoint.save import device_copies, staging
from smddp.checkpoint.save.device_copies import DeviceCopies
from smddp.checkpoint.save.staging import StagedFile, Staging

if device_kind() != "late":
    pytest.skip("test_late_device.py runs it on the late device", allow_module_level=True)
LATE, OTHER = torch.device("late", 0), torch.device("late", 1)
MB = 1_000_000
ALL = 1 << 40
"""The bytes of a device that is never full."""


class Saves:
    """The copies of one save after the other, as a snapshot makes them."""

    def __init__(self) -> None:
        self.copies = DeviceCopies()
        self.memory, self.own_memory = Staging(self.copies), Staging(self.copies)

    def launch(self, **tensors: Tensor) -> StagedFile:
        with self.copies.launching():
            (file,) = self.memory.copy({"x.safetensors": tensors})
        return file


@pytest.fixture
def saves() -> Saves:
    return Saves()


@contextlib.contextmanager
def bytes_of_device(size: int) -> Iterator[None]:
    """Let a device have so many bytes, those in use included."""
    torch.late.set_capacity(0, size)
    try:
        yield
    finally:
        torch.late.set_capacity(0, ALL)


@pytest.fixture
def slow_bus() -> Iterator[None]:
    """Let a byte of a copy over the bus take a microsecond of the device's own time."""
    torch.late.set_byte_seconds(1e-6)
    yield
    torch.late.set_byte_seconds(1e-10)


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that does not count its memory."""
    monkeypatch.setattr(device_copies, "usable_device_memory", lambda device: None)


def late(values: Any, device: torch.device = LATE) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32).to(device)


def of_size(size: int, value: float = 0.0) -> Tensor:
    """A tensor of so many bytes."""
    return torch.full((size // 4,), value, dtype=torch.float32, device=LATE)


def read(file: StagedFile) -> dict[str, Tensor]:
    return dict(safetensors.torch.load(bytes(file.content)))


@pytest.mark.parametrize("room", ["room", "no room"])
def test_a_snapshot_is_complete_after_the_wait_and_not_before(saves: Saves, room: str, request: Any) -> None:
    if room == "no room":
        request.getfixturevalue("no_room")
    tensor = late(range(1000))
    file = saves.launch(x=tensor, on_cpu=torch.arange(3.0))
    tensor.fill_(-1)  # the next step changes it at once
    found = read(file)
    assert found["x"].isnan().all()
    assert found["on_cpu"].tolist() == [0, 1, 2]
    saves.copies.wait()
    assert torch.equal(read(file)["x"], torch.arange(1000.0))


@pytest.mark.parametrize("room", ["room", "no room"])
def test_a_snapshot_of_two_devices_and_of_strange_tensors_is_complete(saves: Saves, room: str, request: Any) -> None:
    if room == "no room":
        request.getfixturevalue("no_room")
    tensors = {
        "first": late(range(10)),
        "second": late(range(20), OTHER),
        "transposed": late([[1, 2], [3, 4]]).t(),
        "expanded": late([1.5]).expand(5, 3),
        "half": late([1, 2, 3]).half(),
        "whole": torch.arange(5, device=LATE),
        "flag": torch.tensor([True, False]).to(LATE),
        "number": late(3.25),
        "empty": torch.empty(0, 3, device=LATE),
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).to(LATE).conj(),
        "negative": torch.tensor([1 + 2j, 3 - 4j]).to(LATE).conj().imag,
    }
    expected = {name: each.cpu().resolve_conj().resolve_neg().contiguous() for name, each in tensors.items()}
    file = saves.launch(**tensors)
    saves.copies.wait()
    found = read(file)
    assert all(torch.equal(found[name], each) and found[name].dtype == each.dtype for name, each in expected.items())


def test_a_device_with_room_does_not_stall_for_the_transfer(saves: Saves, slow_bus: None) -> None:
    tensor = late(range(1_000_000))
    began = torch.accelerator.current_stream().record_event(torch.Event(LATE, enable_timing=True))
    for _ in range(2):
        saves.launch(x=tensor)
        assert saves.copies.wait() < 0.04
    ended = torch.accelerator.current_stream().record_event(torch.Event(LATE, enable_timing=True))
    torch.accelerator.synchronize()
    assert began.elapsed_time(ended) >= 8000 - 40  # both copies were waited for, 4 s each


def test_the_stall_of_a_device_without_room_is_the_time_of_the_copies(
    saves: Saves, slow_bus: None, no_room: None
) -> None:
    saves.launch(x=late(range(1_000_000)))
    assert saves.copies.wait() == pytest.approx(4, rel=0.25)  # less the seconds of the call itself


def test_the_memory_of_a_snapshot_is_pinned_and_used_again(saves: Saves) -> None:
    tensor = late(range(1000))
    saves.launch(x=tensor)
    saves.copies.wait()
    before = torch.late.counts()
    assert before["pinned"] == 1
    for number in range(3):
        tensor.fill_(number)
        file = saves.launch(x=tensor)
        saves.copies.wait()
        assert read(file)["x"].unique().tolist() == [number]
    after = torch.late.counts()
    assert after.get("pinned") == before.get("pinned")
    assert after["to_host_later"] == before["to_host_later"] + 3


def test_a_save_takes_half_of_what_training_leaves(
    saves: Saves, slow_bus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_RUN", 4 * MB)  # each tensor alone, not the four together
    tensors = {f"x{number}": of_size(4 * MB, number) for number in range(4)}
    torch.accelerator.reset_peak_memory_stats()
    with bytes_of_device(torch.accelerator.memory_allocated() + 25 * MB):  # room for 12.5 MB: three of four
        file = saves.launch(**tensors)
        assert saves.copies.wait() == pytest.approx(4, rel=0.25)  # of the fourth
    assert all(read(file)[f"x{number}"].unique().tolist() == [number] for number in range(4))
    assert torch.accelerator.max_memory_allocated() - torch.accelerator.memory_allocated() == pytest.approx(
        12 * MB, rel=0.01
    )


def test_the_buffer_of_an_earlier_save_does_not_count_as_training(saves: Saves, slow_bus: None) -> None:
    tensor = of_size(4 * MB)
    torch.accelerator.reset_peak_memory_stats()
    with bytes_of_device(torch.accelerator.memory_allocated() + 9 * MB):
        for _ in range(5):
            saves.launch(x=tensor)
            assert saves.copies.wait() < 0.04


def test_what_training_needs_after_the_first_save_is_left_to_it_from_then_on(saves: Saves, slow_bus: None) -> None:
    tensor = of_size(4 * MB)
    torch.accelerator.reset_peak_memory_stats()
    with bytes_of_device(torch.accelerator.memory_allocated() + 12 * MB):
        saves.launch(x=tensor)
        assert saves.copies.wait() < 0.04
        for _ in range(3):
            step = of_size(11 * MB)  # 1 MB is left
            del step
            saves.launch(x=tensor)
            assert saves.copies.wait() == pytest.approx(4, rel=0.25)


def test_small_tensors_of_all_kinds_are_copied_together(saves: Saves) -> None:
    tensors = {f"x{number}": torch.full((number,), number, dtype=torch.float32, device=LATE) for number in range(50)}
    tensors |= {f"y{number}": torch.full((3, number), number, device=LATE).t() for number in range(50)}
    tensors |= {f"z{number}": torch.tensor(number, dtype=torch.int32, device=LATE) for number in range(50)}
    before = torch.late.counts().get("to_host", 0)
    file = saves.launch(**tensors)
    assert torch.late.counts()["to_host"] == before + 2  # items of eight bytes, and of four
    for tensor in tensors.values():
        tensor.fill_(-1)
    saves.copies.wait()
    assert all(each.eq(int(name[1:])).all() for name, each in read(file).items())
    assert read(file)["y7"].shape == (7, 3)


def test_two_memories_share_a_buffer(saves: Saves) -> None:
    flags, values = torch.tensor([True, False, True], device=LATE), late([1, 2, 3])
    with saves.copies.launching():
        (first,) = saves.memory.copy({"x.safetensors": {"flags": flags}})
        (second,) = saves.own_memory.copy({"y.safetensors": {"values": values}})
    saves.copies.wait()
    assert read(first)["flags"].tolist() == [True, False, True]
    assert read(second)["values"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("how", ["nobody waited", "the second device raised"])
def test_a_save_that_failed_does_not_write_to_the_next_one(
    saves: Saves, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "nobody waited":
        saves.launch(x=late([1, 1]), y=late([1, 1], OTHER))
    else:
        real = device_copies._DeviceCopy.launch
        with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
            patch.setattr(
                device_copies._DeviceCopy, "launch", lambda copy: real(copy) if copy._device == LATE else 1 / 0
            )
            saves.launch(x=late([1, 1]), y=late([1, 1], OTHER))
    monkeypatch.setattr(device_copies, "usable_device_memory", lambda device: None)
    file = saves.launch(x=late([2, 2]), y=late([2, 2], OTHER))
    saves.copies.wait()
    torch.accelerator.synchronize(LATE)
    torch.accelerator.synchronize(OTHER)
    assert {name: each.tolist() for name, each in read(file).items()} == {"x": [2, 2], "y": [2, 2]}


def test_a_save_that_fails_midway_keeps_no_tensor(saves: Saves) -> None:
    tensor = of_size(MB)
    before = torch.accelerator.memory_allocated()
    with pytest.raises(ZeroDivisionError), saves.copies.launching():
        saves.memory.copy({"x.safetensors": {"x": tensor + 1}})
        raise ZeroDivisionError
    assert torch.accelerator.memory_allocated() == before
    file = saves.launch(x=tensor)
    saves.copies.wait()
    assert read(file)["x"].unique().tolist() == [0]


def test_hosts_that_share_a_device_take_no_buffer(monkeypatch: pytest.MonkeyPatch, slow_bus: None) -> None:
    monkeypatch.setenv("NCCL_HOSTID", "host-1")
    saves = Saves()
    saves.launch(x=of_size(4 * MB))
    assert saves.copies.wait() == pytest.approx(4, rel=0.25)


def test_a_buffer_that_the_device_cannot_give_is_done_without(
    saves: Saves, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "smddp")
    tensor = of_size(4 * MB, 7)
    monkeypatch.setattr(device_copies, "usable_device_memory", lambda device: ALL)  # memory in no one piece
    with bytes_of_device(torch.accelerator.memory_allocated() + 3 * MB):
        for _ in range(3):
            file = saves.launch(x=tensor)
            tensor.fill_(-1)
            saves.copies.wait()
            assert read(file)["x"].unique().tolist() == [7]
            tensor.fill_(7)
    assert caplog.text.count("saving without a buffer on late:0") == 1  # asked for once, not at each save
    torch.accelerator.reset_accumulated_memory_stats()


@pytest.mark.parametrize("seed", range(20))
def test_training_never_waits_for_memory_because_of_a_save(saves: Saves, seed: int) -> None:
    draw = random.Random(seed)
    state = {f"x{number}": of_size(draw.randrange(1, 2 * MB)) for number in range(8)}
    step = draw.randrange(0, 8 * MB)
    torch.accelerator.reset_peak_memory_stats()
    torch.late.forget()
    with bytes_of_device(torch.accelerator.memory_allocated() + step + draw.randrange(0, 20 * MB) + MB):
        activations = [of_size(step)]
        for number in range(10):
            activations.clear()
            for tensor in state.values():
                tensor.fill_(number)
            file = saves.launch(**state)
            activations.append(of_size(draw.choice((step, step // 2))))  # would wait, or raise
            saves.copies.wait()
            assert all(each.eq(number).all() for each in read(file).values())
    assert "waits_for_memory" not in torch.late.counts()
