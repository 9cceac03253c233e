"""SageMaker metric definitions for the lines that smddp prints, so that it shows the metrics without configuration.

A line reads ``step=120 epoch=3 loss=0.1234``. The Trainer's own metrics are known; a script's are the keyword names in
calls such as ``trainer.log(accuracy=...)``. Names that the script computes at runtime are not found.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from estimators.metric_definition import regex_of_line

_OF_EVERY_TRAINER = ("loss", "lr", "samples_per_second", "step", "epoch", "grad_norm")
_OF_TIMING = (
    *("time_data", "time_forward", "time_backward", "time_optimizer", "time_checkpoint", "time_other"),
    *("peak_memory_gib", "tflops", "mfu"),
)


def definitions(script: ast.Module, *, most: int) -> list[dict[str, str]]:
    """Return at most `most` metric definitions for a script that uses smddp, from its syntax tree.

    If there are too many, the Trainer's timing metrics are dropped first, then the script's own.
    """
    calls = [node for node in ast.walk(script) if isinstance(node, ast.Call)]
    own = dict.fromkeys(name for call in calls for name in _logged(call))
    timed = any(keyword.arg == "timing" for call in calls for keyword in call.keywords)
    names = list(dict.fromkeys([*_OF_EVERY_TRAINER, *own, *(_OF_TIMING if timed else ())]))
    return [{"Name": name, "Regex": regex_of_line(name)} for name in names[:most]]


def _logged(call: ast.Call) -> Iterator[str]:
    """Yield the keyword names of a ``….log(name=...)`` call."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "log":
        yield from (keyword.arg for keyword in call.keywords if keyword.arg and keyword.arg != "reduce")
