"""Log once how long ``torch.compile`` takes in the first step. Later steps pay nothing."""

from __future__ import annotations

import logging
import time
from typing import Any

from torch import nn
from torch.optim import Optimizer

logger = logging.getLogger(__name__)


def log_compile_time(compiled: nn.Module, optimizer: Optimizer) -> None:
    """Log the time from the first forward pass of a compiled model to the first step of its optimizer.

    Call it before the model's first forward pass. A later recompilation, for another batch shape, is not logged.
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
