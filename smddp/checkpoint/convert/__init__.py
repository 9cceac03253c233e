"""Checkpoints to and from what others write: torch.save, safetensors, torch.distributed.checkpoint (DCP)."""

from smddp.checkpoint.convert.exporting import FORMATS, Format, export
from smddp.checkpoint.convert.importing import import_checkpoint

__all__ = ["FORMATS", "Format", "export", "import_checkpoint"]
