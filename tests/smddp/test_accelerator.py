"""The kind of device that SMDDP_DEVICE chooses, and the kinds that are refused; tests/accelerator computes on one."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from smddp.accelerator import check_float64, device_kind, has_streams, random_states, usable_device_memory
from smddp.distributed import join, leave
from smddp.distributed.device import backend_of, choose_backend, visible_gpus
from smddp.errors import DistributedError


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions of ``torch.xpu``, which a machine without one has in place of its own."""
    functions: dict[str, Any] = {"is_available": lambda: True, "device_count": lambda: 2}
    monkeypatch.setattr(torch, "xpu", SimpleNamespace(**functions, current_stream=None))
    monkeypatch.setenv("SMDDP_DEVICE", "xpu")
    return functions


def test_another_accelerator_is_taken_where_it_is_named_alone(
    other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert visible_gpus({}) == ["xpu:0", "xpu:1"]
    assert has_streams(torch.device("xpu"))
    monkeypatch.delenv("SMDDP_DEVICE")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_kind() is None
    assert visible_gpus({}) == []
    assert not has_streams(torch.device("xpu"))


@pytest.mark.parametrize("wanted", ["nothing", "compile", "cuda", "xpu"])
def test_an_accelerator_that_is_not_there_is_refused(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("SMDDP_DEVICE", wanted)
    with pytest.raises(DistributedError, match=f"SMDDP_DEVICE={wanted}: PyTorch sees no such device here; unset it"):
        visible_gpus({})


def test_an_accelerator_without_streams_or_float64_is_refused(
    other: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TypeError("xpu has no float64")

    monkeypatch.setattr(torch, "zeros", refuse)
    with pytest.raises(DistributedError, match="SMDDP_DEVICE=xpu: smddp needs float64: xpu has no float64; set cpu"):
        check_float64(torch.device("xpu"))
    check_float64(torch.device("cuda"))  # no tensor, which would open a context
    monkeypatch.setattr(torch, "xpu", SimpleNamespace(**other))
    with pytest.raises(DistributedError, match="SMDDP_DEVICE=xpu: smddp needs streams"):
        visible_gpus({})
    assert not has_streams(torch.device("xpu"))


def test_its_backend_must_be_in_this_build(monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("xpu")
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda name: False)
    with pytest.raises(DistributedError, match="this PyTorch has no backend of collectives for xpu"):
        choose_backend(None, device, {})
    monkeypatch.setattr("torch.distributed.is_backend_available", lambda name: True)
    assert choose_backend(None, device, {}) == "cpu:gloo,xpu:xccl"
    with pytest.raises(DistributedError, match="backend='nccl' does not carry xpu's tensors: use 'xccl', or None"):
        choose_backend("nccl", device, {})


def test_the_cpu_is_taken_although_there_are_gpus(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("SMDDP_DEVICE", "cpu")
    with caplog.at_level(logging.INFO):
        assert join().device.type == "cpu"
    leave()
    assert "training on 1 CPU process of 1 host by gloo: SMDDP_DEVICE=cpu" in caplog.text


def test_no_cuda_is_asked_for_before_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMDDP_DEVICE", raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("a fork could not use CUDA after that"))
    assert random_states() == {}


@pytest.mark.parametrize(
    ("config", "kind", "backend"),
    [
        ("cpu:gloo,cuda:nccl", "cuda", "nccl"),
        ("cuda:nccl,cpu:gloo", "cuda", "nccl"),
        ("cuda:nccl", "cpu", None),
        ("gloo", "cpu", "gloo"),
    ],
)
def test_the_backend_of_a_kind_of_device(config: str, kind: str, backend: str | None) -> None:
    assert backend_of(config, kind) == backend


def test_memory_that_a_device_does_not_tell_is_unknown(other: dict[str, Any]) -> None:
    def refuse(device: torch.device) -> tuple[int, int]:
        raise RuntimeError("the device does not support querying the available free memory")

    assert usable_device_memory(torch.device("xpu")) is None
    xpu: Any = torch.xpu
    xpu.memory_reserved, xpu.mem_get_info = lambda device: 20, lambda device: (50, 100)
    assert usable_device_memory(torch.device("xpu")) == 70
    xpu.get_per_process_memory_fraction = lambda device: 0.5
    assert usable_device_memory(torch.device("xpu")) == 50
    xpu.mem_get_info = refuse
    assert usable_device_memory(torch.device("xpu")) is None
