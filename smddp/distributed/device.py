"""What a rank computes on and communicates by: its device, the backend of its collectives, and the move of a batch.

The backends' names are PyTorch's: nccl, gloo, mpi, or Amazon's smddp. With GPUs, the default is nccl for CUDA tensors
and gloo for CPU tensors in one process group, so that small agreements between ranks need not pass through the GPU. For
another accelerator, which SMDDP_DEVICE names, it is the backend that PyTorch has for it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
import json
import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.nn.utils.rnn import PackedSequence

from smddp.accelerator import DEVICE_VARIABLE, check_device_kind, device_count, device_kind
from smddp.cluster import Cluster, without_run_variables
from smddp.display_text import counted
from smddp.errors import DistributedError

logger = logging.getLogger(__name__)

CPU = torch.device("cpu")

GPUS_PER_RANK_VARIABLE = "SMDDP_GPUS_PER_RANK"
"""GPUs per rank, for a model that the script places on several; 1 if unset."""

_GPU_COUNTS = ("SM_NUM_GPUS", "SLURM_GPUS_ON_NODE")
"""Variables in which a platform sets the number of GPUs of a host."""

_BACKENDS = ("nccl", "gloo", "mpi", "smddp")
_SMDDP_MODULE = "smdistributed.dataparallel.torch.torch_smddp"


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return an identifier of each visible device, in PyTorch's order.

    A GPU of CUDA has the same in every process that sees it; of other accelerators the index identifies the device.
    """
    check_device_kind()
    if (kind := device_kind()) is None:
        return []
    if kind != "cuda":
        return [f"{kind}:{index}" for index in range(device_count())]
    names = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if names[0].startswith("MIG-"):
        return names[: torch.cuda.device_count()]  # the parts of one GPU share its UUID
    # torch 2.4 has no UUID: then the index identifies the GPU, as if all processes saw the same GPUs.
    return [
        str(getattr(torch.cuda.get_device_properties(index), "uuid", index))
        for index in range(torch.cuda.device_count())
    ]


def share_gpus(store: Store, cluster: Cluster, own: Sequence[str]) -> list[list[str]]:
    """Return the GPUs that each rank of this host sees, by local rank; every rank must call it.

    All ranks see the store, which must not contain these keys yet.
    """
    keys = [f"gpus/{cluster.node_rank}/{local_rank}" for local_rank in range(cluster.local_world_size)]
    store.set(keys[cluster.local_rank], json.dumps(own))
    return [json.loads(store.get(key)) for key in keys]


def gpus_per_rank(environ: Mapping[str, str]) -> int:
    """Return the number of GPUs per rank in the environment, or 1; raise DistributedError for an invalid one."""
    given = environ.get(GPUS_PER_RANK_VARIABLE) or "1"
    if not given.isdecimal() or int(given) < 1:
        raise DistributedError(f"{GPUS_PER_RANK_VARIABLE}={given!r}: give how many GPUs each rank has, from 1")
    return int(given)


def rank_device(cluster: Cluster, visible: Sequence[Sequence[str]], *, per_rank: int = 1) -> torch.device:
    """Return the first GPU of this rank, or the CPU without GPUs; ``visible`` has each local rank's GPUs.

    If the ranks of a host see the same GPUs, these are assigned in the order of local ranks. If each sees its own, as
    with Slurm's ``--gpus-per-task`` or a CUDA_VISIBLE_DEVICES for each rank, it is the first of them. Raise
    DistributedError if a host has more ranks than GPUs, or ranks see partly the same GPUs.
    """
    if not any(visible):
        return CPU
    own = visible[cluster.local_rank]
    others = [set(gpus) for local_rank, gpus in enumerate(visible) if local_rank != cluster.local_rank]
    if len(own) >= per_rank and not any(other & set(own) for other in others):
        return torch.device(device_kind() or "cuda", 0)
    if any(other != set(own) for other in others):
        listed = "; ".join(f"local rank {rank} {', '.join(gpus) or 'none'}" for rank, gpus in enumerate(visible))
        raise DistributedError(
            f"the ranks of host {cluster.host} see some GPUs together and some not ({listed}): let all see the same, "
            "or each one its own (CUDA_VISIBLE_DEVICES counts)"
        )
    first = cluster.local_rank * per_rank
    if first + per_rank > len(own):
        each = "" if per_rank == 1 else f" of {per_rank} GPUs ({GPUS_PER_RANK_VARIABLE})"
        most = len(own) // per_rank
        fewer = (
            f"start at most {counted(most, 'process', 'processes')} a host"
            if most
            else f"lower {GPUS_PER_RANK_VARIABLE}"
        )
        raise DistributedError(
            f"local rank {cluster.local_rank} lacks a GPU: host {cluster.host} runs "
            f"{counted(cluster.local_world_size, 'rank')}{each} and has {counted(len(own), 'GPU')} "
            f"(CUDA_VISIBLE_DEVICES counts); {fewer}, or set {DEVICE_VARIABLE}=cpu to train on the CPU"
        )
    return torch.device(device_kind() or "cuda", first)


def missing_gpus(environ: Mapping[str, str]) -> str | None:
    """Return the likely reason why PyTorch sees no GPU in a job with GPUs; None for a job without."""
    environ = without_run_variables(environ)
    told = next((name for name in _GPU_COUNTS if environ.get(name, "").isdecimal() and int(environ[name]) > 0), None)
    if told is None:
        return None
    if environ.get(DEVICE_VARIABLE) == "cpu":
        return None
    if environ.get("CUDA_VISIBLE_DEVICES") == "":
        cause = "CUDA_VISIBLE_DEVICES='' hides them"
    elif torch.version.cuda is None and torch.version.hip is None:
        cause = f"PyTorch {torch.__version__} is built for the CPU alone; install one that is built for CUDA"
    else:
        cause = (
            f"PyTorch is built for CUDA {torch.version.cuda}: is the host's driver older than that, or was the "
            "container started without its GPUs? nvidia-smi shows the driver and the GPUs"
        )
    return f"{told}={environ[told]}, and PyTorch sees no GPU: {cause}"


def choose_backend(requested: str | None, device: torch.device, environ: Mapping[str, str]) -> str:
    """Return the backend string for ``torch.distributed.init_process_group``.

    None requests the device's default. That is smddp if SageMaker's job asks for ``smdistributed``, in
    SM_FRAMEWORK_PARAMS, and its package is installed and carries the device's tensors. Raise DistributedError for a
    backend that is unknown, not in this build of PyTorch, or does not fit the device.
    """
    if device.type not in ("cpu", "cuda"):
        return _backends_of_other(device, requested)
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


def backend_of(config: str, kind: str) -> str | None:
    """Return what carries the tensors of a kind of device, or None.

    ``config`` is as PyTorch has it: one backend for all that it can carry, or a list such as "cpu:gloo,cuda:nccl".
    """
    return dict(pair.split(":") for pair in config.split(",")).get(kind) if ":" in config else config


def _backends_of_other(device: torch.device, requested: str | None) -> str:
    """Return the backends of an accelerator other than CUDA: PyTorch's own for it, and gloo for the CPU."""
    name = dist.Backend.default_device_backend_map.get(device.type)
    if name is None or not dist.is_backend_available(name):
        raise DistributedError(
            f"this PyTorch has no backend of collectives for {device.type}; set {DEVICE_VARIABLE}=cpu to do without"
        )
    if requested not in (None, name):
        raise DistributedError(f"backend={requested!r} does not carry {device.type}'s tensors: use {name!r}, or None")
    return f"cpu:gloo,{device.type}:{name}"


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


def move(batch: Any, device: torch.device) -> Any:
    """Return the batch with its tensors on the device, their types unchanged.

    An object with a method ``to`` moves itself (PackedSequence, transformers' BatchEncoding). Tuples, namedtuples,
    lists, mappings and dataclasses are copied with their items moved, at any depth. Any other object is passed through.
    Copies from pinned memory do not wait for the GPU, if ``to`` accepts ``non_blocking``.
    """

    def to_device(item: Any) -> Any:
        if isinstance(item, Tensor):
            return item.to(device, non_blocking=True)
        kind: Any = type(item)
        if not callable(getattr(kind, "to", None)):
            return None
        moved = item.to(device, non_blocking=True) if _takes_non_blocking(kind) else item.to(device)
        return item if moved is None else moved  # None: the object moved in place

    return _converted(batch, to_device)


def cast(values: Any, dtype: torch.dtype) -> Any:
    """Return the values with their floating-point tensors cast to this type, in the containers that `move` supports.

    A PackedSequence converts itself; any other object with a method ``to`` is passed through.
    """

    def to_dtype(item: Any) -> Any:
        if isinstance(item, Tensor):
            return item.to(dtype) if item.is_floating_point() else item
        if isinstance(item, PackedSequence):
            return item.to(dtype) if item.data.is_floating_point() else item
        return item if callable(getattr(type(item), "to", None)) else None

    return _converted(values, to_dtype)


def _converted(batch: Any, convert: Callable[[Any], Any]) -> Any:
    """Return the batch with its items converted; ``convert`` returns None for a container."""
    if (converted := convert(batch)) is not None:
        return converted
    kind: Any = type(batch)
    if isinstance(batch, tuple):
        items = [_converted(item, convert) for item in batch]
        return kind._make(items) if hasattr(kind, "_make") else kind(items)
    if isinstance(batch, list):
        items = [_converted(item, convert) for item in batch]
        return items if kind is list else _with_items(batch, dict(enumerate(items)))
    if isinstance(batch, Mapping):
        named = {key: _converted(item, convert) for key, item in batch.items()}
        if kind is dict:
            return named
        return _with_items(batch, named) if isinstance(batch, MutableMapping) else kind(named)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        clone = copy.copy(batch)
        for field in dataclasses.fields(batch):
            if hasattr(batch, field.name):
                value = _converted(getattr(batch, field.name), convert)
                object.__setattr__(clone, field.name, value)  # the dataclass may be frozen
        return clone
    return batch


def _with_items(container: Any, items: Mapping[Any, Any]) -> Any:
    """Return a shallow copy with other items, which keeps the attributes of a subclass."""
    clone = copy.copy(container)
    for key, item in items.items():
        clone[key] = item
    return clone


@functools.cache
def _takes_non_blocking(kind: Any) -> bool:
    try:
        parameters = inspect.signature(kind.to).parameters.values()
    except ValueError:  # written in C, without a signature
        return False
    return any(each.name == "non_blocking" or each.kind is each.VAR_KEYWORD for each in parameters)
