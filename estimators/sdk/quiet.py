"""Silence the SDK's own notices for users who did not choose the SDK: its maintenance warning and start-up lines.

The user's settings stay: only an unset variable and an unset logging level are changed.
"""

from __future__ import annotations

import builtins
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SUPPRESS_VARIABLE = "SAGEMAKER_SUPPRESS_V2_WARNING"
"""The variable that silences "v2 is on path of deprecation" (see sagemaker.deprecations)."""

_CONFIG_LOGGER = "sagemaker.config"
"""On import this logger prints the paths of missing configuration files."""

_SHOW = ("_showtraceback", "showtraceback", "showsyntaxerror")
"""What shows tracebacks in IPython: methods of its shell, which an attribute of the same name hides."""


@contextmanager
def without_maintenance_notice() -> Iterator[None]:
    """Silence V2's maintenance warning for a block, then restore the environment."""
    if SUPPRESS_VARIABLE in os.environ:
        yield
        return
    os.environ[SUPPRESS_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(SUPPRESS_VARIABLE, None)


def quiet_configuration_logger() -> None:
    """Limit the SDK's configuration logger to warnings, unless its level is set."""
    logger = logging.getLogger(_CONFIG_LOGGER)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


@contextmanager
def program_kept() -> Iterator[None]:
    """Restore the root logger and the display of tracebacks after a block: the SDK replaces both on import."""
    root = logging.getLogger()
    level, handlers, excepthook = root.level, list(root.handlers), sys.excepthook
    # Of IPython, in which the SDK has rich draw a box around each traceback.
    shell = getattr(builtins, "get_ipython", lambda: None)()
    shown = {} if shell is None else {name: vars(shell).get(name) for name in _SHOW}
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
        sys.excepthook = excepthook
        for name, own in shown.items():
            if own is None:
                vars(shell).pop(name, None)
            else:
                vars(shell)[name] = own


@contextmanager
def without_log() -> Iterator[None]:
    """Silence the SDK's log for a block that only queries the SDK."""
    logger = logging.getLogger("sagemaker")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
