"""Checkpoints: everything a run needs to go on, verified byte for byte, never half written.

One checkpoint is one directory, ``step-000000001234``, with a manifest, and in it a directory of the attempt that saved
it, whose files are never changed once the manifest names them:

* ``<part>.safetensors`` holds the tensors of one part of the state, ``model`` or ``optimizer`` for instance, in the
  safetensors format, under the names that they have in that part's state_dict. Where several ranks wrote, there are
  several: ``model-00001-of-00004.safetensors``.
* ``ranks.safetensors`` holds, in the same way, what each rank has its own of: its random numbers, for instance.
* ``state.json`` holds all the rest: the nesting of the state, its numbers and texts, and where each tensor belongs.
* ``digests.json`` holds the xxh3_128 of every tensor.
* ``manifest.json`` is written last, names every other file with its size and xxh3_128, and vouches for itself.

What is not named in a valid manifest does not exist. No file is a pickle, and reading one runs no code.
"""

from smddp.checkpoint.best import find_best
from smddp.checkpoint.checkpointer import Checkpointer
from smddp.checkpoint.convert import export, import_checkpoint
from smddp.checkpoint.convert.weights import WeightsError, WeightsReport, load_weights
from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.restore.reader import CheckpointInfo, list_checkpoints
from smddp.checkpoint.retention import Retention
from smddp.checkpoint.save.save_request import SaveReport

__all__ = [
    "CheckpointInfo",
    "Checkpointer",
    "Manifest",
    "Retention",
    "SaveReport",
    "WeightsError",
    "WeightsReport",
    "export",
    "find_best",
    "import_checkpoint",
    "list_checkpoints",
    "load_weights",
]
