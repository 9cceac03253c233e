"""Transfer: the weights of one training as the beginning of another, by name, with a report of what fits.

Which weight belongs to which is the business of `smddp.checkpoint.convert.matching`.
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
    """Weights do not fit the module that they were to be loaded into."""


@dataclass(kw_only=True, slots=True, frozen=True)
class WeightsReport:
    """What became of each weight, parameters and buffers alike."""

    source: str
    """Where the weights were read."""
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    """Those that the module has and the source has not: they stay as they were."""
    unexpected: tuple[str, ...]
    """Those that the source has and the module has not."""
    misshapen: Mapping[str, str]
    """Those that both have, but that do not fit, and why: what they are in the source, and in the module."""
    cast: Mapping[str, str]
    """Those that were loaded as another dtype, and both dtypes."""
    frozen: tuple[str, ...] = ()
    """The parameters that training leaves as they are now."""
    running: tuple[str, ...] = ()
    """The layers loaded and frozen that have running statistics, as BatchNorm: in training mode they go on changing."""

    @property
    def complete(self) -> bool:
        """Whether module and source have the same weights."""
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
    """Begin with the weights of another training. They are taken by name; of a checkpoint nothing else is read.

    Call it before the optimizer and the Trainer are made, on every rank: each reads the source. The names that
    DistributedDataParallel and torch.compile make are recognised on both sides.

    Args:
        module: What to load into. Numbers are cast to its dtypes.
        source: A place with checkpoints (the newest valid one is taken) or one checkpoint, each a directory or
            ``s3://…``; a file of torch.save or safetensors, a SageMaker ``model.tar.gz``, or one of these in S3; a
            directory with a model; one that torch.distributed.checkpoint saved. No code in it is run.
        part: The part of the state that has the weights.
        prefix: Take only the weights whose names begin so, and leave that away: ``backbone.``, for a part of a model.
        strict: Whether everything must fit. If not, what does not is left as it was, and told as a warning.
        freeze: Keep the parameters that were loaded from being trained. BatchNorm's running statistics are no
            parameters: they stay as they are only while their layers are in eval mode, and `WeightsReport.running`
            names these layers.

    Returns:
        What was loaded, and what not.

    Raises:
        WeightsError: Something does not fit, and strict; or nothing fits. The module is as it was.
        CheckpointError: There is no such source, it is damaged, or it is not safe to read.
        OSError: It cannot be read.
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
    except RuntimeError as error:  # from the module's own load_state_dict: names and shapes fit
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
