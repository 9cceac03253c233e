"""Match the weights of a source to those of a module, by name, dtype kind and shape. Nothing is changed here."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from smddp.job.saved_model import METADATA, plain_name

_REPLICATED = "module."  # the prefix of DistributedDataParallel and AveragedModel
_AVERAGED = "n_averaged"  # AveragedModel's counter


@dataclass(kw_only=True, slots=True)
class Match:
    """The weights that fit and those that do not. `unexpected` has the source's names, all others the module's."""

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


def match_weights(module: nn.Module, weights: Mapping[str, Any], *, prefix: str) -> Match:
    """Compare a source's weights, which may include extra state, with a module's; `prefix` as in `load_weights`."""
    own = module.state_dict(keep_vars=True)
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
    names, origins = _aligned(_without_compiled(own), plain)

    match = Match(unexpected=[origin for name, origin in origins.items() if name not in names])
    ties: dict[int, list[str]] = {}
    for name, own_name in names.items():
        ties.setdefault(id(own[own_name]), []).append(own_name)
        if name not in origins:
            continue
        value, wanted = weights[origins[name]], own[own_name]
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


def _misfit(value: Any, wanted: Any) -> str:
    """Return why a value cannot be loaded into a weight; empty if it can."""
    if not isinstance(wanted, torch.Tensor):
        return ""  # extra state, which only the module can check
    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__qualname__} there, a tensor here"
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
    return one is other or (
        isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and torch.equal(one, other)
    )


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
