"""The late device of `late_device.cpp`: built once, and present in each process whose PYTHONPATH has its directory.

PyTorch loads it by itself: the directory has an entry point of the group ``torch.backends``. A process with it is like
one on a machine with two devices of the kind ``late``.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import torch

SOURCES = sorted(Path(__file__).parent.glob("late_*.[ch]*"))
ROOT = Path(__file__).parents[2]
_NAME = "late_device"
_DEVICES = {"SMDDP_DEVICE": "late", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def environment() -> dict[str, str]:
    """Return the environment for a process with the late device, which is built if it is not there."""
    names = [*map(str, path()), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(names), **_DEVICES}


def path() -> list[Path]:
    """Return the directories that a Python with the late device has on its path; build the device if it is absent."""
    return [_built(), ROOT]


def _built() -> Path:
    """Return the directory of the library and its entry point; its name is a digest of what they are built from."""
    import torch.utils.cpp_extension as extension  # takes a second, and no test on the device needs it

    digest = hashlib.sha256(
        b"".join(each.read_bytes() for each in (*SOURCES, Path(__file__)))
        + f"{torch.__version__} {sys.version}".encode()
    ).hexdigest()[:16]
    directory = Path(sys.prefix, _NAME, digest)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other tests wait for the one that builds
        if not (directory / f"{_NAME}.so").exists():
            metadata = directory / f"{_NAME}-1.dist-info"
            metadata.mkdir(exist_ok=True)
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: 1\n")
            (metadata / "entry_points.txt").write_text(f"[torch.backends]\nlate = {__name__}:load\n")
            includes = [*extension.include_paths(), sysconfig.get_path("include")]
            libraries = extension.library_paths()[0]
            subprocess.run(
                [
                    *("c++", "-std=c++20", "-O1", "-g0", "-fPIC", "-shared", f"-DTORCH_EXTENSION_NAME={_NAME}"),
                    *(word for each in includes for word in ("-isystem", each)),
                    *(str(Path(__file__).with_suffix(".cpp")), "-o", str(directory / "partial.so")),
                    *(f"-L{libraries}", "-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
                ],
                check=True,
            )
            (directory / "partial.so").rename(directory / f"{_NAME}.so")
    return directory


def load() -> None:
    """Register the device and its collectives; PyTorch calls it at the end of its import."""
    found = importlib.util.find_spec(_NAME)
    assert found is not None and found.loader is not None
    library = importlib.util.module_from_spec(found)
    found.loader.exec_module(library)
    torch.utils.rename_privateuse1_backend("late")
    torch._register_device_module("late", _Module(library))
    torch.utils.generate_methods_for_privateuse1_backend()
    if torch.distributed.is_available():
        gloo = torch.distributed.ProcessGroupGloo

        def make(store: Any, rank: int, size: int, timeout: Any) -> Any:
            return library.backend(gloo(store, rank, size, timeout))

        torch.distributed.Backend.register_backend("lccl", make, devices=["late"])


class _Module(types.ModuleType):
    """``torch.late``: the functions that PyTorch and its users expect of ``torch.cuda``, and the device's book."""

    Stream, Event = torch.Stream, torch.Event

    def __init__(self, library: Any) -> None:
        super().__init__("torch.late")
        self.library = library
        self.current_device, self.set_byte_seconds = library.current_device, library.set_byte_seconds
        self.races, self.counts, self.forget = library.races, library.counts, library.forget
        self.set_capacity = library.set_capacity

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return bool(self.library.is_used())

    def _is_in_bad_fork(self) -> bool:
        return bool(self.library.was_used_before_fork())

    def device_count(self) -> int:
        return 2

    def set_device(self, device: Any) -> None:
        self.library.set_device(_index(device))

    def device(self, device: Any) -> Any:
        return torch.accelerator.device_index(_index(device))

    def synchronize(self, device: Any = None) -> None:
        torch.accelerator.synchronize(device)

    def current_stream(self, device: Any = None) -> torch.Stream:
        return torch.accelerator.current_stream(device)

    def stream(self, stream: torch.Stream) -> Any:
        return stream

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return torch.accelerator.get_memory_info(device)

    def memory_reserved(self, device: Any = None) -> int:
        return torch.accelerator.memory_reserved(device)

    def max_memory_allocated(self, device: Any = None) -> int:
        return torch.accelerator.max_memory_allocated(device)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def manual_seed_all(self, seed: int) -> None:
        for index in range(2):
            self.library.default_generator(index).manual_seed(seed)

    def get_rng_state(self, device: Any = 0) -> torch.Tensor:
        state: torch.Tensor = self.library.default_generator(_index(device)).get_state()
        return state

    def set_rng_state(self, state: torch.Tensor, device: Any = 0) -> None:
        self.library.default_generator(_index(device)).set_state(state)


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    index: int | None = torch.device(device).index
    return torch.late.current_device() if index is None else index
