"""Whether a model and its optimizers can be trained together, before the first step."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer


def underlying_module(model: nn.Module) -> nn.Module:
    """Return the module whose parameter names are saved: that within ``torch.compile``, or the model itself.

    Raises:
        ValueError: The model is replicated already.
    """
    module = getattr(model, "_orig_mod", model)  # torch._dynamo.OptimizedModule; to import its class takes a second
    assert isinstance(module, nn.Module)
    if isinstance(module, DistributedDataParallel | DataParallel):
        raise ValueError(
            f"the model is wrapped in {type(module).__name__}, and would be saved under other names: give the module "
            "itself; the Trainer replicates it over the ranks"
        )
    return module


def check_optimizers(optimizers: Sequence[Optimizer], module: nn.Module, *, world_size: int) -> None:
    """See that each optimizer trains this model.

    Raises:
        ValueError: One has no parameter of it, or, with several ranks, one that is not of it and that the ranks would
            not average.
    """
    own = {id(weight) for weight in module.parameters()}
    for optimizer in optimizers:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        strangers = sum(id(weight) not in own for weight in weights)
        kind = f"the optimizer ({type(optimizer).__name__})"
        if strangers == len(weights):
            raise ValueError(
                f"{kind} has none of the model's parameters, and would train nothing: make it from "
                "model.parameters() of this model, after every change of its layers"
            )
        if strangers and world_size > 1:
            raise ValueError(
                f"{kind} has {strangers} of {len(weights)} parameters that are not the model's: the ranks would train "
                "them apart; make them a part of the model, as of one nn.Module that holds both"
            )
