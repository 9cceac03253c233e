"""Restores one checkpoint: checks it on all ranks, then loads it on all. A run whose load fails must end.

Notes on the order, each step agreed by all ranks before the next:
  1. Rank 0 reads and verifies the checkpoint. If the run has DTensors, each rank reads its own pieces of them.
  2. Rank 0 broadcasts the rest to the other ranks.
  3. Every rank checks that it fits: no part is missing, and none is of another model. Nothing has changed until then,
     so an error on any rank leaves all as they were.
  4. Every rank loads it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch

from smddp.checkpoint.format.manifest import Manifest
from smddp.checkpoint.format.plain_names import plain_state
from smddp.checkpoint.format.state_tree import has_left_out
from smddp.checkpoint.format.tensors import empty_tensor
from smddp.checkpoint.parts.modules import ModulePart
from smddp.checkpoint.parts.optimizers import NamedOptimizer, check_optimizer, keep_strides, weights_in_order
from smddp.checkpoint.restore.reader import Loaded, Unread, load_parts, read_newest
from smddp.checkpoint.run_state import RANKS, RNG, Checking, Stateful, is_in_pieces, restore_random_state
from smddp.checkpoint.stores.filesystem import MISSING
from smddp.checkpoint.stores.store import Store, StoreError
from smddp.display_text import as_size, counted, shown_path
from smddp.distributed import PeerFailedError, Ranks
from smddp.distributed.ranks import error_text
from smddp.dtensor import is_dtensor
from smddp.errors import CheckpointError
from smddp.secret_text import masked

logger = logging.getLogger(__name__)


_Layouts = dict[str, dict[str, tuple[torch.dtype, tuple[int, ...]]]]


def restore_newest(
    store: Store,
    ranks: Ranks,
    *,
    state: Mapping[str, Stateful],
    per_rank: Mapping[str, Stateful],
    hyperparameters: Mapping[str, Any],
    kept: Collection[str] = (),
) -> Manifest | None:
    """Restore the newest valid checkpoint, and return its manifest; None if there is no checkpoint. Collective.

    Parts in ``kept`` stay as they are. The rank that fails raises its own error, and the others raise PeerFailedError.
    """
    parts = {*state, *per_rank, RANKS, RNG}
    targets = {name: partial(_targets_in, part) for name, part in state.items() if is_in_pieces(part)}

    def load(manifest: Manifest) -> Loaded:
        return load_parts(store, manifest, parts=parts, targets=targets, whole=ranks.is_main)

    def read(load: Callable[[Manifest], Loaded]) -> Loaded | None:
        return _read(store, load, hyperparameters)

    if targets and ranks.world_size > 1:
        loaded = _share(ranks, read_on_all(ranks, read, load))
    else:
        loaded = _share(ranks, ranks.agree(lambda: read(load) if ranks.is_main else None))
    if loaded is None:
        return None
    for name, part in state.items():
        if isinstance(part, ModulePart) and name in loaded.skeletons:
            part.describe_left_out(loaded.unflatten(name))
    restoration = ranks.agree(lambda: Restoration(loaded, state=state, per_rank=per_rank, rank=ranks.rank))
    ranks.agree(restoration.check)  # note 3
    ranks.agree(lambda: restoration.apply(kept))
    return loaded.manifest


def read_on_all(
    ranks: Ranks, read: Callable[[Callable[[Manifest], Loaded]], Loaded | None], load: Callable[[Manifest], Loaded]
) -> Loaded | None:
    """Read the newest checkpoint that is valid on all ranks, each its own pieces. Collective.

    Rank 0 looks for it by `read`. Each checkpoint that it tries is loaded on all ranks, and is damaged if it is damaged
    on one of them.
    """
    own: Loaded | None = None
    own_error: Exception | None = None

    def load_here(manifest: Manifest) -> Loaded:
        nonlocal own, own_error
        own, error = None, None
        try:
            own = load(manifest)
        except Exception as raised:  # not swallowed: raised once all ranks know
            error = raised
        is_gone = isinstance(error, OSError) and error.errno in MISSING
        is_damaged = is_gone or (isinstance(error, CheckpointError) and not isinstance(error, StoreError))
        own_error = None if is_damaged else error
        told = ranks.gather(lambda: None if error is None else (is_damaged, error_text(error)))
        if error is not None:
            raise error
        for rank, failure in enumerate(told):
            if failure is not None:
                text = f"rank {rank}: {failure[1]}"
                raise CheckpointError(text) if failure[0] else PeerFailedError(text, rank=rank, told=failure[1])
        assert own is not None
        return own

    def load_on_all(manifest: Manifest) -> Loaded:
        ranks.from_rank(0, manifest)
        return load_here(manifest)

    if ranks.is_main:
        loaded, failure = None, None
        try:
            loaded = read(load_on_all)
        except Exception as raised:  # not swallowed: raised below
            failure = raised
        ranks.from_rank(0, None)
        # If another rank has failed, that one raises its own error, and this one that of a peer.
        ranks.agree(partial(_result, loaded, None if isinstance(failure, PeerFailedError) else failure))
        return _result(loaded, failure)
    while (manifest := ranks.from_rank(0, None)) is not None:
        with suppress(Exception):  # rank 0 knows of it, and raises it or looks further
            load_here(manifest)
    return ranks.agree(partial(_result, own, own_error))


def _result(loaded: Loaded | None, failure: Exception | None) -> Loaded | None:
    if failure is not None:
        raise failure
    return loaded


def _targets_in(part: Stateful, state: Any) -> dict[str, torch.Tensor]:
    """Return the DTensors of a module or an optimizer whose values are in a state of `Unread` tensors, by name."""
    if isinstance(part, ModulePart):
        saved = plain_state(state)
        pairs = [(saved.get(key), tensor) for key, tensor in plain_state(part.module.state_dict()).items()]
    else:
        assert isinstance(part, NamedOptimizer | torch.optim.Optimizer)
        try:
            weights = part.weights_of(state) if isinstance(part, NamedOptimizer) else weights_in_order(part, state)
        except ValueError:  # it does not fit, and is refused below
            return {}
        pairs = [
            (value, weight)
            for number, weight in weights.items()
            for key, value in state["state"].get(number, {}).items()
            if key != "step"  # a plain tensor in every optimizer of PyTorch, which loads it apart, too
        ]
    return {
        value.name: tensor
        for value, tensor in pairs
        if is_dtensor(tensor) and isinstance(value, Unread) and value.shape == tuple(tensor.shape)
    }


def _read(store: Store, load: Callable[[Manifest], Loaded], hyperparameters: Mapping[str, Any]) -> Loaded | None:
    started = time.monotonic()
    loaded = read_newest(store, load=load)
    if loaded is None:
        logger.info("there is no checkpoint in %s: starting from the beginning", shown_path(str(store)))
        return None
    manifest, seconds = loaded.manifest, time.monotonic() - started
    path = shown_path(store.path(manifest.step))
    logger.info("read %s: %s, every byte verified, in %.2f s", path, as_size(manifest.size), seconds)
    if changed := _differing(manifest.hyperparameters, hyperparameters):
        told = ", ".join(f"{name}={new} (was {old})" for name, old, new in changed)
        logger.info("hyperparameters changed since this checkpoint: %s", told)
    return loaded


def _share(ranks: Ranks, read: Loaded | None) -> Loaded | None:
    """Broadcast what rank 0 has read, but for DTensors, of which each rank has read its own values."""
    description = ranks.from_rank(0, None if read is None else (read.manifest, read.skeletons, _layouts(read)))
    if description is None:
        return None
    manifest, skeletons, layouts = description
    loaded = read
    if not ranks.is_main:
        received = {
            part: {name: empty_tensor(dtype, shape) for name, (dtype, shape) in each.items()}
            for part, each in layouts.items()
        }
        own = {} if read is None else read.tensors
        tensors = {part: {**own.get(part, {}), **each} for part, each in received.items()}
        loaded = Loaded(manifest=manifest, skeletons=skeletons, tensors=tensors)
    assert loaded is not None
    ranks.broadcast(loaded.tensors[part][name] for part, each in layouts.items() for name in each)
    return loaded


def _layouts(loaded: Loaded) -> _Layouts:
    return {
        part: {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items() if not is_dtensor(tensor)}
        for part, tensors in loaded.tensors.items()
    }


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return name, old value and new value of each changed hyperparameter, as a log may show them.

    Return nothing if either side is empty.
    """
    if not old or not new:
        return []  # one side recorded none
    told = [{name: json.dumps(value) for name, value in each.items()} for each in (old, new)]
    names = [*old, *(name for name in new if name not in old)]
    return [
        (name, *(masked(each.get(name, "not given"), name) for each in told))
        for name in names
        if told[0].get(name) != told[1].get(name)
    ]


def reason_of(error: Exception) -> str:
    """Return an error's message, which is a sentence if a part refuses the state; else with its type."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _is_state_of_rank(state: object) -> bool:
    return isinstance(state, dict) and RNG in state


class Restoration:
    """Loads a checkpoint into the parts of a run, on one rank: `check` first, then `apply`."""

    def __init__(
        self, loaded: Loaded, *, state: Mapping[str, Stateful], per_rank: Mapping[str, Stateful], rank: int
    ) -> None:
        """Change nothing yet."""
        self._loaded = loaded
        self._state = state
        self._per_rank = per_rank
        self._rank = rank
        self._what = f"the checkpoint of step {loaded.manifest.step}"
        skeletons = loaded.skeletons
        of_ranks = loaded.unflatten(RANKS if RANKS in skeletons else RNG)
        if RANKS not in skeletons and isinstance(of_ranks, list):  # format 1
            of_ranks = [{RNG: random} for random in of_ranks]
        self._ranks: list[dict[str, Any]] = of_ranks
        if not (isinstance(self._ranks, list) and self._ranks and all(map(_is_state_of_rank, self._ranks))):
            raise CheckpointError(f"{RANKS!r} of {self._what} is not a list of the state of each rank: it is damaged")

    def check(self) -> None:
        """Raise CheckpointError if the checkpoint lacks a part or a part's state does not fit. Change nothing."""
        saved = set(self._loaded.skeletons) - {RANKS, RNG}
        own = set(self._ranks[0]) - {RNG}
        missing = sorted((set(self._state) - saved) | (set(self._per_rank) - own - saved))
        if missing:
            raise CheckpointError(
                f"{self._what} has no {', '.join(missing)}, only {', '.join(sorted(saved | own))}; resume with the "
                "same parts, or start anew in another directory"
            )
        for name, part in self._state.items():
            if not isinstance(part, ModulePart) and has_left_out(self._loaded.skeletons[name]):
                raise CheckpointError(f"{self._what} leaves out values of {name}: only a model's may be left out")
            if isinstance(part, Checking):
                self._check_part(name, part.check_state_dict, self._loaded.unflatten(name))
            elif isinstance(part, torch.optim.Optimizer):
                self._check_part(name, partial(check_optimizer, part), self._loaded.unflatten(name))
        own_state = self._ranks[self._rank] if self._rank < len(self._ranks) else {}
        for name, part in self._per_rank.items():
            if isinstance(part, Checking) and name in own_state:
                self._check_part(name, part.check_state_dict, own_state[name])
        unused = sorted((saved | own) - set(self._state) - set(self._per_rank))
        if unused and self._rank == 0:
            logger.warning("%s also has %s: not used", self._what, ", ".join(unused))

    def apply(self, kept: Collection[str] = ()) -> None:
        """Load the state into each part that is not ``kept``. Raise CheckpointError if a part fails to load."""
        state_of_all = {name: part for name, part in self._state.items() if name not in kept}
        state_of_rank = {name: part for name, part in self._per_rank.items() if name not in kept}
        # Modules last: once checked they load without errors, and a part that fails before leaves them unchanged.
        for name, part in sorted(state_of_all.items(), key=lambda item: isinstance(item[1], ModulePart)):
            self._give(name, part, self._loaded.unflatten(name))
        is_new = self._rank >= len(self._ranks)
        own = {} if is_new else self._ranks[self._rank]
        for name, part in state_of_rank.items():
            if name in own:
                self._give(name, part, own[name])
            elif name not in self._ranks[0]:  # saved as a part that is the same on all ranks
                self._give(name, part, self._loaded.unflatten(name))
        if is_new and self._per_rank:
            logger.warning(
                "rank %d has no %s in a checkpoint of %s: it begins with its own, as for a new run",
                self._rank,
                ", ".join(self._per_rank),
                counted(len(self._ranks), "rank"),
            )
        with self._loading("random state"):
            restore_random_state([each[RNG] for each in self._ranks], rank=self._rank)

    def _give(self, name: str, part: Stateful, state: Any) -> None:
        with self._loading(name):
            part.load_state_dict(state)
            if isinstance(part, torch.optim.Optimizer):
                keep_strides(part.state)

    @contextmanager
    def _loading(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise CheckpointError(f"{self._what} does not fit this run's {name}: {reason_of(error)}") from error

    def _check_part(self, name: str, check: Callable[[Any], None], state: Any) -> None:
        try:
            check(state)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self._what} does not fit this run's {name}: {reason_of(error)}. Nothing was loaded; resume with "
                "what it was saved of, or start anew in another directory"
            ) from error
