"""Transfer learning: load another training's weights by name, and report which ones fit.

The matching of names is in `smddp.checkpoint.convert.matching`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from smddp.checkpoint.convert.matching import Match, match_weights
from smddp.checkpoint.convert.sources import find_source
from smddp.errors import CheckpointError, SmddpError

logger = logging.getLogger(__name__)

_SHOWN = 6  # names in a line of a report


class WeightsError(SmddpError, ValueError):
    """Weights do not fit the module."""


@dataclass(kw_only=True, slots=True, frozen=True)
class WeightsReport:
    """The result for each weight: parameters and buffers."""

    source: str
    """The location of the weights."""
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    """Weights of the module that the source lacks; they are unchanged."""
    unexpected: tuple[str, ...]
    """Weights of the source that the module lacks."""
    misshapen: Mapping[str, str]
    """Weights in both whose shape, kind of number or tie differs, by name, with the reason."""
    cast: Mapping[str, str]
    """Weights loaded with another dtype, by name, with both dtypes."""
    frozen: tuple[str, ...] = ()
    """Parameters that were loaded and frozen."""
    running: tuple[str, ...] = ()
    """Loaded and frozen layers with running statistics, such as BatchNorm: these still change in training mode."""

    @property
    def complete(self) -> bool:
        """Whether all weights of module and source fit each other."""
        return not (self.missing or self.unexpected or self.misshapen)

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.missing) + len(self.misshapen)
        casts = sorted(set(self.cast.values()))
        lines = [
            f"{len(self.loaded)} of the module's {total} weights are in {self.source}, and fit",
            _line("missing there", self.missing),
            _line("misshapen", [f"{name} ({why})" for name, why in self.misshapen.items()]),
            _line("unexpected there", self.unexpected),
            f"  cast ({len(self.cast)}): {', '.join(casts)}" if casts else "",
            f"  frozen ({len(self.frozen)})" if self.frozen else "",
            _line("running statistics, which change unless in eval mode", self.running),
        ]
        return "\n".join(line for line in lines if line)


def load_weights(
    module: nn.Module,
    source: str | os.PathLike[str],
    *,
    part: str = "model",
    prefix: str = "",
    strict: bool = True,
    freeze: bool = False,
) -> WeightsReport:
    """Load another training's weights into a module, by name. Other parts of a checkpoint are not read.

    Call it on every rank, before the optimizer and the Trainer are created; each rank reads the source. Prefixes of
    DistributedDataParallel and torch.compile are recognised on both sides.

    Args:
        module: The module to load into. Values are cast to its dtypes.
        source: A checkpoint store (the newest valid checkpoint is read) or one checkpoint, each a directory or
            ``s3://…``; a file of torch.save or safetensors, a SageMaker ``model.tar.gz``, or one of these in S3; a
            directory with a model; a directory of torch.distributed.checkpoint. No code in it is run.
        part: The part of the state with the weights.
        prefix: Load only weights with this prefix, and strip it: ``backbone.`` for a part of a model.
        strict: Require that all weights fit. Otherwise weights that do not fit are unchanged, with a warning.
        freeze: Set ``requires_grad=False`` on the loaded parameters. BatchNorm's running statistics are no parameters:
            they still change in training mode. `WeightsReport.running` names these layers.

    Returns:
        The weights that were loaded, and those that were not.

    Raises:
        WeightsError: A weight does not fit and `strict` is set, or no weight fits. The module is unchanged.
        CheckpointError: The source is absent, damaged, or not safe to read.
        OSError: The source cannot be read.
    """
    weights, origin = find_source(source).read_part(part)
    match = match_weights(module, weights, prefix=prefix)
    parameters = dict(module.named_parameters(remove_duplicate=False)) if freeze else {}
    report = WeightsReport(
        source=origin,
        loaded=tuple(sorted(match.loaded)),
        missing=tuple(match.missing),
        unexpected=tuple(match.unexpected),
        misshapen=match.misshapen,
        cast=match.cast,
        frozen=tuple(sorted(match.loaded.intersection(parameters))),
        running=_with_running_statistics(module, match.loaded) if freeze else (),
    )
    if match.on_meta:
        raise WeightsError(
            f"{match.on_meta} is on the meta device, and so has no memory to load into; give the module some first: "
            'module.to_empty(device="cpu")'
        )
    if not match.loaded:
        raise WeightsError(f"nothing of the module is in the source: is it another model, or under a prefix?\n{report}")
    if strict and not report.complete:
        raise WeightsError(f"nothing was loaded, for not everything fits; strict=False loads what does\n{report}")
    _apply(module, match, origin)
    for name in report.frozen:
        parameters[name].requires_grad_(False)
    logger.log(logging.INFO if report.complete and not report.running else logging.WARNING, "%s", report)
    return report


def _apply(module: nn.Module, match: Match, source: str) -> None:
    try:
        module.load_state_dict(match.state, strict=False)
    except RuntimeError as error:  # names and shapes fit: the module's own load_state_dict refused
        raise CheckpointError(f"the module did not take the weights of {source}: {error}") from error


def _with_running_statistics(module: nn.Module, loaded: set[str]) -> tuple[str, ...]:
    layers = (f"{name}." if name else "" for name, layer in module.named_modules() if _has_running_statistics(layer))
    return tuple(layer.removesuffix(".") for layer in layers if f"{layer}running_mean" in loaded)


def _has_running_statistics(layer: nn.Module) -> bool:
    return isinstance(getattr(layer, "running_mean", None), torch.Tensor)


def _line(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"  {what} ({len(names)}): {', '.join(names[:_SHOWN])}{more}"
