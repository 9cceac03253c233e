"""The metrics that smddp's lines print, as SageMaker's metric definitions: it then shows them without being told how.

A line reads ``step=120 epoch=3 loss=0.1234``. What the Trainer prints by itself is known; a script's own names are
those it writes out in calls such as ``trainer.log(accuracy=...)``. Names that it makes up as it runs are not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from estimators import source_code
from estimators.metric_definition import regex_of_line

_OF_EVERY_TRAINER = ("loss", "lr", "samples_per_second", "step", "epoch", "grad_norm")
_OF_TIMING = (
    *("time_data", "time_forward", "time_backward", "time_optimizer", "time_checkpoint", "time_other"),
    *("peak_memory_gib", "tflops", "mfu"),
)


def definitions(script: Path, *, most: int) -> list[dict[str, str]]:
    """Return the metric definitions of a script that uses smddp, at most so many.

    Args:
        script: The entry point.
        most: What SageMaker takes. The script's own names go before those of the Trainer's timing.
    """
    tree = source_code.parsed(script)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    own = dict.fromkeys(name for call in calls for name in _logged(call))
    timed = any(keyword.arg == "timing" for call in calls for keyword in call.keywords)
    names = list(dict.fromkeys([*_OF_EVERY_TRAINER, *own, *(_OF_TIMING if timed else ())]))
    return [{"Name": name, "Regex": regex_of_line(name)} for name in names[:most]]


def _logged(call: ast.Call) -> Iterator[str]:
    """Yield the names of ``….log(name=...)``."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "log":
        yield from (keyword.arg for keyword in call.keywords if keyword.arg and keyword.arg != "reduce")
