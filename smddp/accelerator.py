"""The accelerator to compute on: CUDA's or ROCm's GPUs (``cuda``), or the kind in SMDDP_DEVICE, such as ``xpu``.

PyTorch calls the module of a kind of device by its name, ``torch.cuda`` or ``torch.xpu``, and they have the same
functions. What only CUDA has stays where it is used: TF32, capabilities, cudart, NCCL.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from smddp.errors import DistributedError

DEVICE_VARIABLE = "SMDDP_DEVICE"
"""A kind of device; unset: CUDA, and the CPU without it. ``cpu`` leaves all accelerators alone."""


def device_kind() -> str | None:
    """Return the kind of device to compute on, such as ``"cuda"``; None for the CPU."""
    wanted = os.environ.get(DEVICE_VARIABLE) or "cuda"
    if wanted == "cuda":
        return "cuda" if torch.cuda.is_available() else None
    return None if wanted == "cpu" else wanted


def check_device_kind() -> None:
    """Raise DistributedError if SMDDP_DEVICE names an accelerator that can't be used here."""
    wanted = os.environ.get(DEVICE_VARIABLE) or "cpu"
    if wanted == "cpu":
        return
    known: Any = getattr(torch, wanted, None)
    if not (hasattr(known, "is_available") and known.is_available()):
        raise DistributedError(f"{DEVICE_VARIABLE}={wanted}: PyTorch sees no such device here; unset it, or set cpu")
    if not hasattr(known, "current_stream"):
        raise DistributedError(
            f"{DEVICE_VARIABLE}={wanted}: smddp needs streams, which PyTorch's {wanted} lacks; set cpu"
        )


def check_float64(device: torch.device) -> None:
    """Raise DistributedError if an accelerator other than CUDA lacks the type of means over samples."""
    if device.type in ("cpu", "cuda"):
        return
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (TypeError, RuntimeError) as error:
        raise DistributedError(f"{DEVICE_VARIABLE}={device.type}: smddp needs float64: {error}; set cpu") from None


def device_count() -> int:
    """Return the number of devices that PyTorch sees."""
    kind = device_kind()
    return 0 if kind is None else int(device_module(kind).device_count())


def device_module(kind: str) -> Any:
    """Return PyTorch's module of a kind of device; Any, because the backend may come from another package."""
    return getattr(torch, kind)


def current_device(kind: str) -> torch.device:
    """Return the device of a kind that the next tensor is made on."""
    return torch.device(kind, device_module(kind).current_device())


def has_streams(device: torch.device) -> bool:
    """Return whether work on the device runs in streams, while the program goes on."""
    if device.type in ("cpu", "cuda"):
        return device.type == "cuda"
    return device.type == os.environ.get(DEVICE_VARIABLE) and hasattr(device_module(device.type), "current_stream")


def set_current_device(device: torch.device) -> None:
    """Make a device the current one of this process."""
    if device.type != "cpu":
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
    if device.type != "cpu":
        device_module(device.type).synchronize(device)


def peak_device_memory(device: torch.device) -> int | None:
    """Return the peak bytes of the tensors on a device; None if it does not count them."""
    read = getattr(device_module(device.type), "max_memory_allocated", None)
    return None if read is None else int(read(device))


def usable_device_memory(device: torch.device) -> int | None:
    """Return the bytes free for this process plus those that PyTorch has reserved in it; None if unknown."""
    module = device_module(device.type)
    if not (hasattr(module, "mem_get_info") and hasattr(module, "memory_reserved")):
        return None
    try:
        free, total = module.mem_get_info(device)
    except RuntimeError:  # Intel's GPUs may not tell their free memory
        return None
    usable = int(free) + int(module.memory_reserved(device))
    fraction = getattr(module, "get_per_process_memory_fraction", None)
    return usable if fraction is None else min(usable, int(fraction(device) * total))


def device_name(device: torch.device) -> str:
    """Return what the vendor calls a device, or its kind if it has no name."""
    read = getattr(device_module(device.type), "get_device_name", None)
    return device.type if read is None else str(read(device))


def random_states() -> dict[str, list[torch.Tensor]]:
    """Return the state of each device's generator under their kind; empty if the process has not used CUDA.

    To ask whether CUDA is available would begin to initialize it, and then a forked process can't.
    """
    if os.environ.get(DEVICE_VARIABLE, "cuda") in ("", "cuda"):
        kind = "cuda" if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    else:
        kind = device_kind()
    if kind is None:
        return {}
    return {kind: [device_module(kind).get_rng_state(index) for index in range(device_count())]}


def set_random_state(state: torch.Tensor, kind: str, index: int) -> None:
    """Restore the generator of a device from one of `random_states`."""
    device_module(kind).set_rng_state(state, index)
