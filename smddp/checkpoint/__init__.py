"""Checkpoints: everything a run needs to resume, verified byte for byte, never half written.

One checkpoint is one directory, ``step-000000001234``. It contains the manifest and the directory of one save attempt.
The files of the attempt never change once the manifest names them:

* ``<part>.safetensors`` holds the tensors of one part of the state, such as ``model`` or ``optimizer``, under their
  names in the part's state_dict. Several ranks write several files: ``model-00001-of-00004.safetensors``.
* ``ranks.safetensors`` holds the tensors of each rank's own state, such as its random number generators.
* ``state.json`` holds the rest: the nesting of the state, its numbers and texts, and the position of each tensor.
* ``digests.json`` holds the xxh3_128 of every tensor.
* ``manifest.json`` is written last. It names every other file with its size and xxh3_128, and holds its own digest.

Files that no valid manifest names do not count. No file is a pickle, and reading a checkpoint runs no code.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smddp.checkpoint.checkpointer import Checkpointer as Checkpointer
    from smddp.checkpoint.convert import export as export
    from smddp.checkpoint.convert import import_checkpoint as import_checkpoint
    from smddp.checkpoint.convert.weights import WeightsError as WeightsError
    from smddp.checkpoint.convert.weights import WeightsReport as WeightsReport
    from smddp.checkpoint.convert.weights import load_weights as load_weights
    from smddp.checkpoint.format.manifest import Manifest as Manifest
    from smddp.checkpoint.restore.listing import CheckpointInfo as CheckpointInfo
    from smddp.checkpoint.restore.listing import find_best as find_best
    from smddp.checkpoint.restore.listing import list_checkpoints as list_checkpoints
    from smddp.checkpoint.retention import Retention as Retention
    from smddp.checkpoint.save.attempt import Moment as Moment
    from smddp.checkpoint.save.attempt import SaveReport as SaveReport
    from smddp.checkpoint.stores.store import CommitListener as CommitListener

_HOMES = {
    "CommitListener": "smddp.checkpoint.stores.store",
    "CheckpointInfo": "smddp.checkpoint.restore.listing",
    "Checkpointer": "smddp.checkpoint.checkpointer",
    "Manifest": "smddp.checkpoint.format.manifest",
    "Moment": "smddp.checkpoint.save.attempt",
    "Retention": "smddp.checkpoint.retention",
    "SaveReport": "smddp.checkpoint.save.attempt",
    "WeightsError": "smddp.checkpoint.convert.weights",
    "WeightsReport": "smddp.checkpoint.convert.weights",
    "export": "smddp.checkpoint.convert",
    "find_best": "smddp.checkpoint.restore.listing",
    "import_checkpoint": "smddp.checkpoint.convert",
    "list_checkpoints": "smddp.checkpoint.restore.listing",
    "load_weights": "smddp.checkpoint.convert.weights",
}
"""The module of each public name. Imported on first use: listing checkpoints does not need torch."""

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'smddp.checkpoint' has no attribute {name!r}; it offers {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
