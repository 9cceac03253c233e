"""Which backend carries the collectives: nccl, gloo, mpi or Amazon's smddp, and whether it fits the device.

The names are PyTorch's. With GPUs the default is nccl for CUDA tensors and gloo for CPU tensors in one process group,
so that small agreements between ranks need not pass through the GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
from collections.abc import Mapping

import torch
import torch.distributed as dist

from smddp.errors import DistributedError

logger = logging.getLogger(__name__)

_BACKENDS = ("nccl", "gloo", "mpi", "smddp")
_SMDDP_MODULE = "smdistributed.dataparallel.torch.torch_smddp"


def choose_backend(requested: str | None, device: torch.device, environ: Mapping[str, str]) -> str:
    """The backend string for ``torch.distributed.init_process_group``.

    Args:
        requested: One of nccl, gloo, mpi and smddp, or None for the default of the device. The default is smddp where
            SageMaker's job asks for ``smdistributed`` and its package is installed.
        device: The device of this rank.
        environ: The environment; SM_FRAMEWORK_PARAMS tells what the job's distribution is.

    Raises:
        DistributedError: If the backend is unknown, not in this build of PyTorch, or does not fit the device.
    """
    if requested is None:
        requested = _default(device, environ)
    if requested not in _BACKENDS:
        raise DistributedError(f"backend={requested!r} is unknown; use one of {', '.join(_BACKENDS)}, or None")
    if requested in ("nccl", "smddp") and device.type != "cuda":
        raise DistributedError(
            f"backend={requested!r} needs a CUDA device, and this rank runs on the {device.type.upper()}; "
            "use backend='gloo', or None to have it chosen"
        )
    if requested == "nccl":
        if not dist.is_nccl_available():
            raise DistributedError("this build of PyTorch has no NCCL; use backend='gloo'")
        return "cpu:gloo,cuda:nccl"
    if requested == "mpi" and not dist.is_mpi_available():
        raise DistributedError(
            "this build of PyTorch has no MPI backend (it must be compiled against MPI; ranks started by mpirun "
            "do not need it); use backend='gloo' or 'nccl'"
        )
    if requested == "smddp":
        if not _smddp_is_installed():
            raise DistributedError(
                "backend='smddp' needs Amazon's package smdistributed.dataparallel, which only AWS's training images "
                "for P4d and P4de have; use backend='nccl'"
            )
        importlib.import_module(_SMDDP_MODULE)
    return requested


def _default(device: torch.device, environ: Mapping[str, str]) -> str:
    if device.type != "cuda":
        return "gloo"
    if not _job_asks_for_smddp(environ):
        return "nccl"
    if _smddp_is_installed():
        return "smddp"
    logger.warning(
        "the job's distribution is smdistributed, but the package smdistributed.dataparallel is not installed here: "
        "gradients go over nccl instead"
    )
    return "nccl"


def _job_asks_for_smddp(environ: Mapping[str, str]) -> bool:
    parameters = json.loads(environ.get("SM_FRAMEWORK_PARAMS") or "{}")
    return bool(parameters.get("sagemaker_distributed_dataparallel_enabled"))


def _smddp_is_installed() -> bool:
    try:
        return importlib.util.find_spec(_SMDDP_MODULE) is not None
    except ModuleNotFoundError:
        return False
