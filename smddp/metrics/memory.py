"""The peak memory of a rank."""

from __future__ import annotations

import re
from pathlib import Path

import torch

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of the tensors on a GPU, or of the whole process for a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    found = _PEAK.search(Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024
