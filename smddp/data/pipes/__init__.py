"""Channels in Pipe mode: records read as they arrive, in an order that resumes on any number of hosts."""

from smddp.data.pipes.dataset import PipeDataset
from smddp.data.pipes.pipe_order import PipeOrder

__all__ = ["PipeDataset", "PipeOrder"]
