"""Transfer learning: load another training's weights by name, and report which ones fit.

`match_weights` pairs the weights of the source and of the module by name, dtype kind and shape, and changes nothing.
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from smddp.checkpoint.convert.sources import find_source
from smddp.checkpoint.format.frozen import LeftOut, fingerprints
from smddp.checkpoint.format.plain_names import METADATA, plain_name
from smddp.checkpoint.format.shards import division_of, take_piece
from smddp.checkpoint.parts.modules import has_bits
from smddp.checkpoint.restore.reader import FindTargets, Unread
from smddp.checkpoint.restore.restoring import reason_of
from smddp.display_text import shown_names
from smddp.distributed import Ranks
from smddp.dtensor import is_dtensor, local_values
from smddp.errors import CheckpointError, SmddpError

logger = logging.getLogger(__name__)


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
    DistributedDataParallel and torch.compile are recognised on both sides. Of a sharded module (DTensors with Shard and
    Replicate), each rank reads its own pieces, from checkpoints, safetensors files and files of torch.save: call it
    after the Trainer has divided the module.

    Args:
        module: The module to load into. Values are cast to its dtypes.
        source: A checkpoint store (the newest valid checkpoint is read) or one checkpoint, each a directory or
            ``s3://…``; a file of torch.save or safetensors, a SageMaker ``model.tar.gz``, or one of these in S3; a
            directory with a model, which may be in several safetensors files, as Hugging Face writes them; a directory
            of torch.distributed.checkpoint. No code in it is run.
        part: The part of the state with the weights; of a file with several names for it, the name to read.
        prefix: Load only weights with this prefix, and strip it: ``backbone.`` for a part of a model.
        strict: Require that all weights fit. Otherwise weights that do not fit are unchanged, with a warning.
        freeze: Set ``requires_grad=False`` on the loaded parameters. BatchNorm's running statistics are not parameters:
            they still change in training mode. `WeightsReport.running` names these layers.

    Returns:
        The weights that were loaded, and those that were not.

    Raises:
        WeightsError: A weight does not fit and `strict` is set, or no weight fits. The module is unchanged.
        CheckpointError: The source is absent, damaged, or not safe to read.
        OSError: The source cannot be read.
    """
    weights, origin = find_source(source).read_part(part, _targets(module, prefix))
    match = _match_weights(module, weights, prefix=prefix)
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


def _apply(module: nn.Module, match: _Match, source: str) -> None:
    present = module.state_dict()
    for name, value in match.state.items():
        if is_dtensor(present.get(name)):
            take_piece(present[name], value)
            match.state[name] = present[name]  # the module copies it onto itself, which takes no memory
    try:
        module.load_state_dict(match.state, strict=False)
    except Exception as error:  # names and shapes fit: the module's own code, or forged metadata of its layers
        raise CheckpointError(f"the module did not take the weights of {source}: {reason_of(error)}") from error


def _with_running_statistics(module: nn.Module, loaded: set[str]) -> tuple[str, ...]:
    layers = (f"{name}." if name else "" for name, layer in module.named_modules() if _has_running_statistics(layer))
    return tuple(layer.removesuffix(".") for layer in layers if f"{layer}running_mean" in loaded)


def _has_running_statistics(layer: nn.Module) -> bool:
    return isinstance(getattr(layer, "running_mean", None), torch.Tensor)


def _line(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    return f"  {what} ({len(names)}): {shown_names(names)}"


_REPLICATED = "module."  # the prefix of DistributedDataParallel and AveragedModel
_AVERAGED = "n_averaged"  # AveragedModel's counter


@dataclass(kw_only=True, slots=True)
class _Match:
    """A comparison of weights with a module. Names are the module's; only in `unexpected` they are the source's."""

    state: OrderedDict[str, Any] = field(default_factory=OrderedDict)
    """The weights that fit, for the module's load_state_dict."""
    loaded: set[str] = field(default_factory=set)
    """The names in `state`, and the names of weights tied to them in the module."""
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: dict[str, str] = field(default_factory=dict)
    cast: dict[str, str] = field(default_factory=dict)
    on_meta: str = ""
    """A weight of the module on the meta device; empty if none."""


def _match_weights(module: nn.Module, weights: Mapping[str, Any], *, prefix: str) -> _Match:
    """Compare a source's weights, which may include extra state, with a module's; `prefix` as in `load_weights`."""
    own = module.state_dict(keep_vars=True)
    names, origins = _pair_names(own, weights, prefix)
    match = _Match(unexpected=[origin for name, origin in origins.items() if name not in names])
    found = {names[name]: weights[origins[name]] for name in names if name in origins}
    left_out = {name: value for name, value in found.items() if isinstance(value, LeftOut)}
    _check_left_out(own, left_out)
    ties: dict[int, list[str]] = {}
    for name, own_name in names.items():
        ties.setdefault(id(own[own_name]), []).append(own_name)
        if name not in origins:
            continue
        wanted = own[own_name]
        value = wanted.detach() if own_name in left_out else found[own_name]
        tied = next((each for each in ties[id(wanted)] if each in match.state), None)
        if reason := _misfit(value, wanted):
            match.misshapen[own_name] = reason
        elif tied is not None and not _same(match.state[tied], value):
            match.misshapen[own_name] = f"other values there than {tied}, and here they are one tensor"
        else:
            match.state[own_name] = value
            if isinstance(wanted, torch.Tensor) and wanted.is_meta:
                match.on_meta = own_name
            if isinstance(value, torch.Tensor) and not is_lazy(wanted) and value.dtype != wanted.dtype:
                match.cast[own_name] = f"{_dtype(value)} to {_dtype(wanted)}"
    match.loaded.update(name for group in ties.values() if match.state.keys() & set(group) for name in group)
    match.loaded.difference_update(match.misshapen)
    match.missing += [own for own in names.values() if own not in match.loaded and own not in match.misshapen]
    _keep_versions(weights, match.state, names, origins)
    return match


def _pair_names(
    own: Mapping[str, Any], weights: Mapping[str, Any], prefix: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the original names of a module's state and of a source's weights, by the common plain name."""
    plain = _without_compiled(weights)
    if (
        _AVERAGED in plain
        and _AVERAGED not in own
        and all(name.startswith(_REPLICATED) for name in {*plain} - {_AVERAGED})
    ):
        del plain[_AVERAGED]
    if prefix and not any(name.startswith(prefix) for name in plain):
        plain = _stripped(plain) or plain
    if prefix:
        plain = {name.removeprefix(prefix): origin for name, origin in plain.items() if name.startswith(prefix)}
    return _aligned(_without_compiled(own), plain)


def _targets(module: nn.Module, prefix: str) -> FindTargets | None:
    """Return the function that finds the DTensors to read the pieces of; None if the module has none."""
    own = module.state_dict()
    if not any(map(is_dtensor, own.values())):
        return None

    def find(state: Any) -> dict[str, torch.Tensor]:
        names, origins = _pair_names(own, state, prefix) if isinstance(state, Mapping) else ({}, {})
        found: dict[str, list[Any]] = {}
        for name in names.keys() & origins.keys():
            value, target = state[origins[name]], own[names[name]]
            fits = is_dtensor(target) and division_of(target).why_unsupported is None
            if fits and isinstance(value, Unread) and value.shape == tuple(target.shape):
                found.setdefault(value.name, []).append(target)
        # Tied weights may be divided in different ways here. They are then read whole.
        return {name: each[0] for name, each in found.items() if all(map(partial(_alike, each[0]), each))}

    return find


def _alike(one: Any, other: Any) -> bool:
    return (one.device_mesh, one.placements) == (other.device_mesh, other.placements)


def _without_compiled(names: Iterable[str]) -> dict[str, str]:
    """Map each name without torch.compile's prefix to the original name."""
    return {plain_name(str(name)): name for name in names}


def _stripped(names: Mapping[str, str]) -> dict[str, str]:
    """Map each name without DistributedDataParallel's prefix to the original; empty if two names would collide."""
    stripped = {name.removeprefix(_REPLICATED): origin for name, origin in names.items()}
    return stripped if len(stripped) == len(names) else {}


def _aligned(own: dict[str, str], theirs: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Strip DistributedDataParallel's prefix on one side, both or neither, whichever matches most names."""
    sides = product([own, _stripped(own)], [theirs, _stripped(theirs)])
    return max(sides, key=lambda pair: len(pair[0].keys() & pair[1].keys()))


def _check_left_out(own: Mapping[str, Any], left_out: Mapping[str, LeftOut]) -> None:
    """Raise WeightsError unless the module has the frozen weights that the source leaves out.

    What was trained beside them is worth nothing beside others, so ``strict=False`` is no way around it. Collective if
    one is a DTensor.
    """
    weights = {name: own[name] for name in left_out if has_bits(own[name])}
    found = fingerprints(weights, Ranks.current(), in_pieces=any(map(is_dtensor, weights.values())))
    same = {name for name, each in found.items() if LeftOut.of(weights[name], each) == left_out[name]}
    if other := [name for name in left_out if name not in same]:
        raise WeightsError(
            f"{len(other)} of {len(left_out)} frozen weights, which the checkpoint leaves out, have other values here: "
            f"{shown_names(other)}. Nothing was loaded; load the same base model first, in the same precision, or "
            "choose other weights by prefix="
        )


def _misfit(value: Any, wanted: Any) -> str:
    """Return why a value cannot be loaded into a weight; empty if it can."""
    if not isinstance(wanted, torch.Tensor):
        return ""  # extra state, which only the module can check
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__qualname__} there, a tensor here"
    if is_dtensor(wanted) and (why := division_of(wanted).why_unsupported) is not None:
        return why
    if is_lazy(wanted) or (value.shape == wanted.shape and _kind(value) == _kind(wanted)):
        return ""
    return f"{_dtype(value)} {list(value.shape)} there, {_dtype(wanted)} {list(wanted.shape)} here"


def _kind(tensor: torch.Tensor) -> str:
    """Return the kind of number. Nothing is cast between kinds: the values would change their meaning."""
    if tensor.is_floating_point():
        return "float"
    return "complex" if tensor.is_complex() else "bool" if tensor.dtype == torch.bool else "int"


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are the same, on all ranks; collective for DTensors, as the load of them is."""
    if one is other:
        return True
    if not (isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    is_here = torch.equal(local_values(one), local_values(other))
    return all(Ranks.current().gather(lambda: is_here)) if is_dtensor(one) else is_here


def _keep_versions(
    weights: Mapping[str, Any], state: OrderedDict[str, Any], names: Mapping[str, str], origins: Mapping[str, str]
) -> None:
    """Copy the version of each layer, which load_state_dict needs, from the source's metadata to the state's."""
    versions = getattr(weights, METADATA, None)
    if not isinstance(versions, Mapping):
        return
    kept = dict(versions)
    for name, own_name in names.items():
        layer = origins.get(name, "").rpartition(".")[0]
        if layer in versions:
            kept[own_name.rpartition(".")[0]] = versions[layer]
    setattr(state, METADATA, kept)
