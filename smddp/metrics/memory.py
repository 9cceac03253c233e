"""How much memory a rank has used."""

from __future__ import annotations

import re
from pathlib import Path

import torch

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


def peak_memory(device: torch.device) -> int:
    """Return bytes: the most that tensors took of a GPU at once so far, or that the process had in memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    found = _PEAK.search(Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024
