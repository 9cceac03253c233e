"""Convert checkpoints to and from other formats: torch.save, safetensors, torch.distributed.checkpoint (DCP)."""

from smddp.checkpoint.convert.exporting import FORMATS, Format, export
from smddp.checkpoint.convert.importing import import_checkpoint

__all__ = ["FORMATS", "Format", "export", "import_checkpoint"]
