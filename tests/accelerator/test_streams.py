"""What depends on streams, events and pinned memory, on a device that is late each time: `late_device.cpp` says how."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_sequence

import smddp
from smddp.accelerator import device_kind, move_module, synchronize
from smddp.checkpoint.run_state import capture_random_state, restore_random_state
from smddp.distributed import move
from smddp.distributed.replica import Replica
from smddp.job import Job
from smddp.metrics import device_use, step_timer

if device_kind() != "late":
    pytest.skip("test_late_device.py runs it on the late device", allow_module_level=True)
LATE = torch.device("late", 0)
OTHER = torch.device("late", 1)


def late(values: Any, device: torch.device = LATE) -> Tensor:
    return torch.as_tensor(values, dtype=torch.float32).to(device)


def test_the_device_is_late() -> None:
    target = torch.zeros(3, pin_memory=True)
    target.copy_(late([1, 2, 3]), non_blocking=True)
    assert target.isnan().all()
    torch.accelerator.synchronize()
    assert target.tolist() == [1, 2, 3]


def test_an_event_of_another_stream_brings_no_copy() -> None:
    target = torch.zeros(3, pin_memory=True)
    target.copy_(late([1, 2, 3]), non_blocking=True)
    for stream in (torch.Stream(LATE), torch.accelerator.current_stream(OTHER)):
        stream.record_event().synchronize()
    assert target.isnan().all()
    torch.accelerator.synchronize()


def test_pinned_memory_that_is_used_again_too_early_is_a_race() -> None:
    source = torch.ones(3).pin_memory()
    on_device = source.to(LATE, non_blocking=True)
    doubled = on_device * 2
    source.fill_(7)  # the copy was launched, and nobody has waited for it
    torch.accelerator.synchronize()
    assert doubled.tolist() == [2, 2, 2]
    assert [each for each in torch.late.races() if "pinned memory was overwritten" in each]
    torch.late.forget()


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="there is no device late:2"):
        torch.ones(1, device="late:2")


def test_a_stream_that_does_not_wait_races() -> None:
    tensor = late([1, 2])
    with (
        torch.Stream(LATE),
        pytest.raises(RuntimeError, match=r"race on the late device: stream .* reads what stream 0"),
    ):
        tensor + 1
    assert torch.late.races()
    torch.late.forget()


def test_memory_that_another_stream_still_uses_is_not_given_again_in_silence() -> None:
    tensor, stream = late([1, 2]), torch.Stream(LATE)
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        kept = tensor + 1
    del tensor
    tensor = late([1, 2])
    assert [each for each in torch.late.races() if "is given again while stream" in each]
    torch.late.forget()
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        kept = tensor + 1
    tensor.record_stream(stream)
    del tensor
    tensor = late([1, 2])
    assert not torch.late.races()
    stream.wait_stream(torch.accelerator.current_stream())
    with stream:
        kept = tensor + 1
    del tensor
    torch.accelerator.current_stream().wait_stream(stream)  # in place of record_stream
    late([1, 2])
    assert not torch.late.races()
    stream.synchronize()
    assert kept.tolist() == [2, 3]


def test_batches_of_pinned_memory_are_moved_without_waiting() -> None:
    @dataclasses.dataclass
    class Batch:
        images: Tensor
        names: list[str]

    batch = Batch(torch.arange(4.0).pin_memory(), ["a"])
    packed = pack_sequence([torch.ones(2)]).pin_memory()
    before = torch.late.counts().get("to_device_later", 0)
    moved = move({"batch": batch, "label": torch.ones(2).pin_memory(), "packed": packed}, LATE)
    assert torch.late.counts()["to_device_later"] == before + 3
    assert moved["packed"].data.device == LATE
    assert moved["batch"].images.tolist() == [0, 1, 2, 3]
    assert moved["label"].device == LATE


def test_a_model_is_called_with_or_without_a_batch_of_the_cpu() -> None:
    replica: Any = SimpleNamespace(
        device_ids=[0],
        device_type="late",
        use_side_stream_for_tensor_copies=False,
        module=lambda *given, **named: (given, named),
    )
    assert Replica._forward_alone(replica, (), {}) == ((), {})
    (given,), named = Replica._forward_alone(replica, (torch.ones(2),), {"mask": torch.ones(2), "name": "a"})
    assert (given.device, named["mask"].device, named["name"]) == (LATE, LATE, "a")


def test_the_parts_of_a_step_are_the_devices_own_time() -> None:
    timer = smddp.StepTimer(LATE)
    timer.mark("other")
    tensor = late(range(100))
    timer.mark("data")
    for _ in range(50):
        tensor = tensor + 1
    timer.mark("forward")
    shares = timer.lap()
    assert shares["time_forward"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)


def test_a_long_loop_reads_no_time_before_the_device_is_there() -> None:
    timer, tensor = smddp.StepTimer(LATE), late(range(100))
    for _ in range(2 * step_timer._MOST_PENDING):  # from the first such number on, it reads what is past
        tensor = tensor + 1
        timer.mark("forward")
    assert timer.lap() == {
        "time_data": 0,
        "time_forward": 1,
        "time_backward": 0,
        "time_optimizer": 0,
        "time_checkpoint": 0,
        "time_other": 0,
    }


def test_to_synchronize_is_to_wait_for_all_streams_of_a_device() -> None:
    target, stream = torch.zeros(3, pin_memory=True), torch.Stream(OTHER)
    with stream:
        source = late([1, 2, 3], OTHER)
        target.copy_(source, non_blocking=True)
    synchronize(LATE)
    assert target.isnan().all()
    synchronize(OTHER)
    assert target.tolist() == [1, 2, 3]


def test_the_peak_memory_is_that_of_the_devices_tensors() -> None:
    tensor = torch.empty(1_000_000, device=OTHER)
    del tensor
    assert device_use.peak_memory(OTHER) == torch.accelerator.max_memory_allocated(OTHER) >= 4_000_000


def test_the_generators_of_all_devices_are_saved_and_restored() -> None:
    torch.manual_seed(1)
    torch.randn(5, device=OTHER)  # from here on the two differ
    state = capture_random_state()
    expected = [torch.randn(3, device=device).tolist() for device in (LATE, OTHER)]
    restore_random_state([state], rank=0)
    assert [torch.randn(3, device=device).tolist() for device in (LATE, OTHER)] == expected


def test_a_checkpoint_of_a_machine_without_it_says_that_draws_differ(caplog: pytest.LogCaptureFixture) -> None:
    state = capture_random_state()
    del state["late"]
    restore_random_state([{**state, "cuda": [torch.zeros(16, dtype=torch.uint8)]}], rank=0)
    assert "the random state of 1 GPUs for rank 0, here are 0" in caplog.text


class OverTwoDevices(nn.Module):
    """The two halves of a model, each on its device."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16).to(LATE), nn.Linear(16, 4).to(OTHER)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.relu(self.first(inputs.to(LATE)))
        return self.second(hidden.to(OTHER))  # type: ignore[no-any-return]


def test_a_model_over_two_devices_trains_and_resumes_bit_by_bit(tmp_path: Path) -> None:
    def run(directory: Path, steps: int) -> list[Tensor]:
        torch.manual_seed(0)
        model = OverTwoDevices()
        environ = {"SMDDP_RUN_DIR": str(directory), "SMDDP_MAX_STEPS": str(steps)}
        trainer = smddp.Trainer(
            Job.detect(environ),
            model,
            torch.optim.AdamW(model.parameters()),
            move_model=False,
            precision="bf16",
            checkpoints=smddp.CheckpointPolicy(every=2),
        )
        generator = torch.Generator().manual_seed(1)
        data = torch.utils.data.TensorDataset(
            torch.randn(64, 8, generator=generator), torch.randint(4, (64,), generator=generator)
        )
        loader = trainer.loader(data, 8, num_workers=0)
        with contextlib.suppress(smddp.Stopped):
            for _ in trainer.epochs(1):
                for inputs, labels in trainer.batches(loader):
                    trainer.step(cross_entropy(trainer.model(inputs).float(), labels.to(OTHER)))
        smddp.leave()
        return [each.detach().cpu() for each in model.state_dict().values()]

    whole = run(tmp_path / "whole", 6)
    run(tmp_path / "parts", 4)
    assert all(map(torch.equal, run(tmp_path / "parts", 6), whole))


def test_an_optimizer_that_was_made_before_the_move_keeps_the_parameters() -> None:
    model = nn.Linear(2, 2)
    before = list(model.parameters())
    move_module(model, LATE)
    assert all(one is other for one, other in zip(before, model.parameters(), strict=True))
    assert model.weight.device == LATE


def test_a_mean_stays_on_the_device_until_it_is_read() -> None:
    mean = smddp.RunningMean()
    mean.add(1.0)
    before = torch.late.counts().get("to_host", 0)
    mean.add(late(2.0))
    mean.add(3.0)
    mean.share()
    mean.add(late(4.0))
    mean.share()
    assert torch.late.counts().get("to_host", 0) == before
    assert mean.mean() == 2.5
