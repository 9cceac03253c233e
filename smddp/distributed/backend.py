"""Choose the backend of the collectives (nccl, gloo, mpi or Amazon's smddp), and check that it fits the device.

The names are PyTorch's. With GPUs, the default is nccl for CUDA tensors and gloo for CPU tensors in one process group,
so that small agreements between ranks need not pass through the GPU.
"""

from __future__ import annotations

import importlib
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
    """Return the backend string for ``torch.distributed.init_process_group``.

    None requests the device's default. That is smddp if SageMaker's job asks for ``smdistributed``, in
    SM_FRAMEWORK_PARAMS, and its package is installed and carries the device's tensors. Raise DistributedError for a
    backend that is unknown, not in this build of PyTorch, or does not fit the device.
    """
    if requested is None:
        requested = _default(device, environ)
    if requested not in _BACKENDS:
        raise DistributedError(f"backend={requested!r} is unknown; use one of {', '.join(_BACKENDS)}, or None")
    if requested == "nccl":
        if device.type != "cuda":
            raise DistributedError(
                f"backend='nccl' needs a CUDA device, and this rank runs on the {device.type.upper()}; "
                "use backend='gloo', or None to have it chosen"
            )
        if not dist.is_nccl_available():
            raise DistributedError("this build of PyTorch has no NCCL; use backend='gloo'")
        return "cpu:gloo,cuda:nccl"
    if requested == "mpi" and not dist.is_mpi_available():
        raise DistributedError(
            "this build of PyTorch has no MPI backend (it must be compiled against MPI; ranks started by mpirun "
            "do not need it); use backend='gloo' or 'nccl'"
        )
    if requested == "smddp" and (obstacle := _obstacle_to_smddp(device)):
        raise DistributedError(f"backend='smddp' can't be had: {obstacle}; use backend={_usual(device)!r}")
    return requested


def _default(device: torch.device, environ: Mapping[str, str]) -> str:
    usual = _usual(device)
    if not _job_asks_for_smddp(environ):
        return usual
    if obstacle := _obstacle_to_smddp(device):
        logger.warning("THE JOB ASKS FOR SMDDP, and %s: gradients go over %s instead", obstacle, usual)
        return usual
    return "smddp"


def _usual(device: torch.device) -> str:
    return "nccl" if device.type == "cuda" else "gloo"


def _job_asks_for_smddp(environ: Mapping[str, str]) -> bool:
    parameters = json.loads(environ.get("SM_FRAMEWORK_PARAMS") or "{}")
    return bool(parameters.get("sagemaker_distributed_dataparallel_enabled"))


def _obstacle_to_smddp(device: torch.device) -> str | None:
    """Import Amazon's package, which registers the backend; return why it can't be used here, or None."""
    try:
        importlib.import_module(_SMDDP_MODULE)
    except ModuleNotFoundError as error:
        if not f"{_SMDDP_MODULE}.".startswith(f"{error.name}."):
            return f"the installed smdistributed.dataparallel lacks something: {error}"
        return "the package smdistributed.dataparallel, which only AWS's images for P4d and P4de have, is not installed"
    except (ImportError, OSError, RuntimeError) as error:  # of a linked library, or of its check of the GPUs
        return f"the installed smdistributed.dataparallel can't be loaded: {error}"
    devices = dist.Backend.backend_capability.get("smddp", [])
    if device.type not in devices:
        carries = f"for {', '.join(devices)}" if devices else "for no device"
        return f"the installed smdistributed.dataparallel is {carries}, and this rank runs on the {device.type.upper()}"
    return None
