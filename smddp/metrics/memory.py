"""How much memory a rank uses."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def memory_in_use(device: torch.device) -> int:
    """Returns bytes: the most that tensors took of a GPU at once so far, or what the process has in memory on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    return resident_pages * os.sysconf("SC_PAGE_SIZE")
