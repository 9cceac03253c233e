"""Counts this host's GPUs without importing torch."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)


def count_gpus(devices: Path = Path("/dev")) -> int:
    """Return the number of GPUs that nvidia-smi lists, or of device files if that program is absent or fails."""
    if shutil.which("nvidia-smi") is not None:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
        logger.warning("nvidia-smi failed (%s): counting device files.", (listed.stderr or listed.stdout).strip())
    return sum(re.fullmatch(r"nvidia\d+", device.name) is not None for device in devices.glob("nvidia*"))


def count_visible(gpus: int, environ: Mapping[str, str]) -> int:
    """Return how many of ``gpus`` CUDA_VISIBLE_DEVICES makes visible to a process."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return gpus if visible is None else min(gpus, len([name for name in visible.split(",") if name.strip()]))
