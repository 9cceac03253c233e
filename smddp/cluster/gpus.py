"""Counts this host's GPUs without torch, and divides a machine's GPUs among the hosts that it runs."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

HOST_GPUS_VARIABLE = "SMDDP_HOST_GPUS"
"""The number of GPUs of this host, if the machine runs several hosts."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_HOST_ID = "NCCL_HOSTID"

logger = logging.getLogger(__name__)


def count_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> int:
    """Count the host's GPUs: its share if it has one, else nvidia-smi's list, else the device files."""
    if environ.get(HOST_GPUS_VARIABLE, "").isdecimal():
        return int(environ[HOST_GPUS_VARIABLE])
    if shutil.which("nvidia-smi") is not None:
        listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
        if listed.returncode == 0:
            return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
        logger.warning("nvidia-smi failed (%s): counting device files.", (listed.stderr or listed.stdout).strip())
    return sum(re.fullmatch(r"nvidia\d+", device.name) is not None for device in devices.glob("nvidia*"))


def count_visible(gpus: int, environ: Mapping[str, str]) -> int:
    """Return how many of ``gpus`` CUDA_VISIBLE_DEVICES makes visible to a process."""
    return len(_visible(gpus, environ))


def host_gpus(hosts: int, gpus: int, environ: Mapping[str, str]) -> list[dict[str, str]]:
    """Return the variables of each host on a machine with ``gpus`` GPUs: the host's share of them.

    Each host gets the same number. If there are more hosts than GPUs, hosts share a GPU, and each tells NCCL that it is
    a host of its own: NCCL refuses two ranks of one host on a GPU. A host that has all GPUs, or none, gets no variable.

    Examples:
        >>> host_gpus(2, 4, {})[1]
        {'CUDA_VISIBLE_DEVICES': '2,3', 'SMDDP_HOST_GPUS': '2'}
    """
    visible = _visible(gpus, environ)
    if hosts < 2 or not visible:
        return [{} for _ in range(hosts)]
    if share := len(visible) // hosts:
        return [_only(visible[host * share : (host + 1) * share]) for host in range(hosts)]
    network = {"NCCL_SOCKET_IFNAME": environ.get("NCCL_SOCKET_IFNAME", "lo")}
    return [{**_only([visible[host % len(visible)]]), _HOST_ID: f"host-{host}", **network} for host in range(hosts)]


def shares_gpu(environ: Mapping[str, str]) -> bool:
    """Return whether another host of the machine may use this host's GPU, by the variables of `host_gpus`."""
    return _HOST_ID in environ


def no_gpus(gpus: int) -> dict[str, str]:
    """Return the variables that hide all of a machine's ``gpus`` GPUs from a host."""
    return _only([]) if gpus else {}


def _only(gpus: list[str]) -> dict[str, str]:
    return {_VISIBLE: ",".join(gpus), HOST_GPUS_VARIABLE: str(len(gpus))}


def _visible(gpus: int, environ: Mapping[str, str]) -> list[str]:
    visible = environ.get(_VISIBLE)
    if visible is None:
        return [str(index) for index in range(gpus)]
    names = (name.strip() for name in visible.split(","))
    return list(takewhile(lambda name: name and not name.startswith("-"), names))[:gpus]  # CUDA stops there, too
