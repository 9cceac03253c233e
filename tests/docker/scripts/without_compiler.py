"""To be imported before an optimizer is made: what asks torch's compiler whether it is at work finds that it is not.

Optimizers, DistributedDataParallel and process groups import ``torch._dynamo`` to ask. That takes each rank two seconds
of CPU time, half of what a job of the tests costs, and nothing here is compiled.
"""

import sys
from types import ModuleType, SimpleNamespace

import torch


def _stand_in() -> ModuleType:
    compiler = ModuleType("torch._dynamo")
    vars(compiler).update(
        disable=lambda function, *_args, **_settings: function,
        graph_break=lambda: None,
        utils=SimpleNamespace(get_optimize_ddp_mode=lambda: "no_optimization"),
        trace_rules=SimpleNamespace(clear_lru_cache=lambda: None),
    )
    return compiler


if "torch._dynamo" not in sys.modules:
    sys.modules["torch._dynamo"] = torch._dynamo = _stand_in()
