"""How many GPUs this host has, without loading torch."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)


def count_gpus(devices: Path = Path("/dev")) -> int:
    """Return the GPUs that nvidia-smi lists; without that program, those that have a device file."""
    if shutil.which("nvidia-smi") is not None:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
        logger.warning("nvidia-smi failed (%s): counting device files.", (listed.stderr or listed.stdout).strip())
    return sum(re.fullmatch(r"nvidia\d+", device.name) is not None for device in devices.glob("nvidia*"))


def count_visible(gpus: int, environ: Mapping[str, str]) -> int:
    """Return the ``gpus`` that CUDA_VISIBLE_DEVICES lets a process use."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return gpus if visible is None else min(gpus, len([name for name in visible.split(",") if name.strip()]))
