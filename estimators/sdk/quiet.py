"""The SDK's own notices, kept from a user who did not choose the SDK: its maintenance warning and its start-up lines.

What the user has set stays set: only an unset variable and an unset logging level are touched.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SUPPRESS_VARIABLE = "SAGEMAKER_SUPPRESS_V2_WARNING"
"""The variable that silences "v2 is on path of deprecation" (see sagemaker.deprecations)."""

_CONFIG_LOGGER = "sagemaker.config"
"""It prints, on import, the paths of configuration files that do not exist."""


@contextmanager
def without_maintenance_notice() -> Iterator[None]:
    """Silence V2's maintenance warning for a block; the environment is as before afterwards."""
    if SUPPRESS_VARIABLE in os.environ:
        yield
        return
    os.environ[SUPPRESS_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(SUPPRESS_VARIABLE, None)


def quiet_configuration_logger() -> None:
    """Keep the SDK's configuration logger to warnings, unless somebody has chosen its level."""
    logger = logging.getLogger(_CONFIG_LOGGER)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


@contextmanager
def program_kept() -> Iterator[None]:
    """Undo what a block does to the root logger and to tracebacks: the SDK sets up both for the program, on import."""
    root = logging.getLogger()
    level, handlers, excepthook = root.level, list(root.handlers), sys.excepthook
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        sys.excepthook = excepthook


@contextmanager
def without_log() -> Iterator[None]:
    """Silence the SDK's log for a block in which it is only asked, not used."""
    logger = logging.getLogger("sagemaker")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
