"""Checkpoints to and from what others write: torch.save, safetensors, torch.distributed.checkpoint (DCP)."""

from smddp.checkpoint.exchange.exporting import FORMATS, Format, export
from smddp.checkpoint.exchange.importing import import_checkpoint

__all__ = ["FORMATS", "Format", "export", "import_checkpoint"]
