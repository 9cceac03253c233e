"""A model that trains in evaluation mode, in which an evaluation, or transformers' ``from_pretrained``, has left it.

Its dropout is off, and its BatchNorm layers keep their statistics, in silence. It may be intended, so it causes a
warning. Layers that the script sets to evaluation mode by themselves do not.
"""

from __future__ import annotations

import logging

from torch import nn

from smddp.display_text import counted

logger = logging.getLogger(__name__)

_DROPOUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
_WITH_DROPOUT = (*_DROPOUT, nn.MultiheadAttention, nn.RNNBase)
_BATCHNORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class EvaluationMode:
    """Warns once, if ``logs``, of steps that are taken in evaluation mode, if the model has a layer that depends on it.

    Layers of other classes, such as a script's own, are not known to depend on it.
    """

    def __init__(self, module: nn.Module, *, logs: bool) -> None:
        self._module = module
        self._looks = logs

    def look(self) -> None:
        """Look at the mode. Call it after a forward pass of the training."""
        if self._module.training or not self._looks:
            return
        self._looks = False
        layers = list(self._module.modules())
        dropping = sum(isinstance(layer, _WITH_DROPOUT) and _rate(layer) > 0 for layer in layers)
        normalizing = sum(isinstance(layer, _BATCHNORM) for layer in layers)
        effects = [
            *([f"dropout is off in {counted(dropping, 'layer')}"] if dropping else ()),
            *([f"BatchNorm keeps its statistics in {counted(normalizing, 'layer')}"] if normalizing else ()),
        ]
        if effects:
            logger.warning(
                "the model trains in evaluation mode: %s. Call trainer.model.train() after each evaluation, and before "
                "the first step if from_pretrained() made the model. If some layers shall stay in evaluation mode, "
                "call eval() on these after that",
                ", and ".join(effects),
            )


def _rate(layer: nn.Module) -> float:
    rate = layer.p if isinstance(layer, _DROPOUT) else layer.dropout
    return float(rate)  # type: ignore[arg-type]
