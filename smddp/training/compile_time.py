"""What ``torch.compile`` takes of the first step, told once in the log. It costs later steps nothing."""

from __future__ import annotations

import logging
import time
from typing import Any

from torch import nn
from torch.optim import Optimizer

logger = logging.getLogger(__name__)


def log_compile_time(compiled: nn.Module, optimizer: Optimizer) -> None:
    """Tell how long it is from the first forward pass to the first optimizer step, in which a model is compiled.

    A model that is compiled again later, for batches of another shape, is not told of.

    Args:
        compiled: What ``torch.compile`` returned, before its first call.
        optimizer: The one that steps first.
    """
    started = 0.0

    def begin(*_: Any) -> None:
        nonlocal started
        started = time.perf_counter()
        on_forward.remove()

    def end(*_: Any) -> None:
        on_step.remove()
        if started:
            logger.info("compiled in %.1f s, the first step included", time.perf_counter() - started)

    on_forward = compiled.register_forward_pre_hook(begin)
    on_step = optimizer.register_step_post_hook(end)
