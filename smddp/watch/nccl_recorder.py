"""Reads what NCCL's recorder tells of this rank's collectives, for a PyTorch without hooks for them.

A GPU computes collectives after the program has asked for them. So a rank is in the first collective that its GPU has
not ended, not in the last one that it asked for.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import MutableMapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.torch_version import TorchVersion

_SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""How many collectives PyTorch's recorder keeps: the name since PyTorch 2.8, and the one before."""
_RECORDED = "64"
_DUMP_VARIABLE = "TORCH_NCCL_DUMP_ON_TIMEOUT"
_GROUP = "default_pg"
_SHAPED = frozenset({"all_reduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base"})
"""Collectives whose input has the same shape and type on every rank."""
_TYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "Long": "int64", "Int": "int32", "Byte": "uint8"}
"""PyTorch's names of the types that its recorder calls otherwise."""


class Recorded(NamedTuple):
    """A rank's place among the collectives of the default process group."""

    number: int
    """The collective that the GPU has not ended, or else the last one that it has; counted from 1."""
    waits: bool
    """Whether it has not ended."""


def switch_on(environ: MutableMapping[str, str]) -> dict[str, str]:
    """Have NCCL record collectives, and return the variables set; call it before the process group is made.

    Set none if PyTorch has hooks or no CUDA, or if the user has set the recorder's size. Unless the user has set
    it, the variable for PyTorch's dump file in /tmp at a timeout is set to 0.
    """
    added: dict[str, str] = {}
    has_hooks = hasattr(dist, "ProcessGroup") and hasattr(dist.ProcessGroup, "register_pre_hook")
    if torch.version.cuda and not has_hooks and not any(name in environ for name in _SIZE_VARIABLES):
        is_new = TorchVersion(torch.__version__) >= "2.8"
        added[_SIZE_VARIABLES[0 if is_new else 1]] = _RECORDED
        if _DUMP_VARIABLE not in environ:
            added[_DUMP_VARIABLE] = "0"
        environ.update(added)
    return added


def is_on() -> bool:
    """Return whether NCCL records the collectives of the default group; it tells nothing before the first one."""
    sizes = [os.environ.get(name, "") for name in _SIZE_VARIABLES]
    is_asked = any(size.isdecimal() and int(size) > 0 for size in sizes)
    return is_asked and _find_dump() is not None and "nccl" in dist.get_backend_config()


def read() -> Recorded | None:
    """Return this rank's place; None without a recorder, or before the first collective. It takes 0.1 ms."""
    dump = _dump(collectives=False)
    names = [str(group["name"]) for group in dump.get("pg_config", {}).values() if group.get("desc") == _GROUP]
    status = dump.get("pg_status", {}).get(names[0]) if names else None
    if status is None:
        return None
    asked, ended = int(status["last_enqueued_collective"]), int(status["last_completed_collective"])
    return Recorded(number=max(min(ended + 1, asked), 0), waits=ended < asked)


def describe(number: int) -> str:
    """Return a collective that has not ended, such as ``all_reduce of float32 [64, 10]``; empty if it is unknown."""
    for entry in _dump(collectives=True).get("entries", []):
        if entry["collective_seq_id"] == number and entry["process_group"][1] == _GROUP and not entry["is_p2p"]:
            name = str(entry["profiling_name"]).removeprefix("nccl:")
            pairs = zip(entry["input_dtypes"], entry["input_sizes"], strict=True) if name in _SHAPED else ()
            shapes = ", ".join(f"{_TYPES.get(dtype, dtype.lower())} {size}" for dtype, size in pairs)
            return name + (f" of {shapes}" if shapes else "")
    return ""


def _find_dump() -> Any:
    # PyTorch has no public name for it. It is absent without CUDA, and before PyTorch 2.5.
    return getattr(importlib.import_module("torch._C._distributed_c10d"), "_dump_nccl_trace_json", None)


def _dump(*, collectives: bool) -> dict[str, Any]:
    dump = _find_dump()
    if dump is None:
        return {}
    # The second argument: only those that have not ended.
    found: dict[str, Any] = json.loads(dump(collectives, True))
    return found
