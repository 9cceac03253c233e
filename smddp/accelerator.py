"""The accelerator that PyTorch computes on: CUDA's and ROCm's GPUs (``cuda``), ``xpu``, ``mps``, or another backend's.

PyTorch calls the module of a kind of device by its name: ``torch.cuda``, ``torch.xpu``. Those have the same functions,
apart from what is asked for here. What only CUDA has stays where it is used: TF32, capabilities, cudart, NCCL.
"""

from __future__ import annotations

from typing import Any

import torch


def device_kind() -> str | None:
    """Return the type of the devices of this machine, such as ``"cuda"``; None without an accelerator."""
    if torch.cuda.is_available():
        return "cuda"
    api = getattr(torch, "accelerator", None)  # since PyTorch 2.6
    if api is None or not api.is_available():
        return None
    return str(api.current_accelerator().type)


def device_count() -> int:
    """Return the number of devices that PyTorch sees."""
    found = device_kind()
    return 0 if found is None else int(device_module(found).device_count())


def device_module(kind: str) -> Any:
    """Return PyTorch's module of a kind of device; Any, because the backend may come from another package."""
    return getattr(torch, kind)


def current_device(kind: str) -> torch.device:
    """Return the device of a kind that the next tensor is made on."""
    return torch.device(kind, 0 if kind == "mps" else device_module(kind).current_device())


def has_streams(device: torch.device) -> bool:
    """Return whether a copy from the device can run while the program goes on."""
    return device.type not in ("cpu", "meta", "mps")


def set_current_device(device: torch.device) -> None:
    """Make it the device of this process. MPS has one alone."""
    if device.type not in ("cpu", "mps"):
        device_module(device.type).set_device(device)


def move_module(model: torch.nn.Module, device: torch.device) -> None:
    """Move a model in place. Its parameters stay the same objects, so an optimizer that was made before keeps them.

    PyTorch does that by itself for its own kinds of device; for another backend's it makes new parameters, unless told.
    """
    before = torch.__future__.get_swap_module_params_on_conversion()
    is_foreign = device.type == torch._C._get_privateuse1_backend_name()  # noqa: SLF001
    torch.__future__.set_swap_module_params_on_conversion(before or is_foreign)
    try:
        model.to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def synchronize(device: torch.device) -> None:
    """Wait for all work of a device."""
    if device.type == "mps":
        torch.mps.synchronize()
    elif device.type != "cpu":
        device_module(device.type).synchronize(device)


def peak_device_memory(device: torch.device) -> int | None:
    """Return the peak bytes of the tensors on a device; None if it does not count them."""
    read = getattr(device_module(device.type), "max_memory_allocated", None)
    return None if read is None else int(read(device))


def device_name(device: torch.device) -> str:
    """Return what the vendor calls a device, or its kind if it has no name."""
    read = getattr(device_module(device.type), "get_device_name", None)
    return device.type if read is None else str(read(device))


def random_states() -> dict[str, list[torch.Tensor]]:
    """Return the state of each device's generator under their kind; empty if the process has not used CUDA.

    To ask whether CUDA is available would begin to initialize it, and then a forked process can't.
    """
    api = getattr(torch, "accelerator", None)
    built_for = None if api is None else api.current_accelerator()  # it looks for no device
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found: str | None = "cuda"
    else:
        found = None if built_for is None or built_for.type == "cuda" else device_kind()
    if found is None:
        return {}
    if found == "mps":
        return {found: [torch.mps.get_rng_state()]}
    return {found: [device_module(found).get_rng_state(index) for index in range(device_count())]}


def set_random_state(state: torch.Tensor, index: int) -> None:
    """Restore the generator of a device from one of `random_states`."""
    found = device_kind()
    assert found is not None
    if found == "mps":
        torch.mps.set_rng_state(state)
    else:
        device_module(found).set_rng_state(state, index)
