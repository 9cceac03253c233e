"""Convert checkpoints to and from other formats: torch.save, safetensors, torch.distributed.checkpoint (DCP)."""

from smddp.checkpoint.convert.conversion import FORMATS, Format, export, import_checkpoint

__all__ = ["FORMATS", "Format", "export", "import_checkpoint"]
