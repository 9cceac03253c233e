"""The position of a training loader that keeps its own state, such as torchdata's StatefulDataLoader."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from smddp.checkpoint.run_state import Stateful
from smddp.distributed import DataRank


class LoaderState:
    """A loader's position on one rank, which a resume on the same number of ranks restores.

    torchdata saves the state that a sampler's generator had before it drew the epoch's order. The loader draws from it
    afterwards, for the order and its workers' seeds, and this decides the order of later epochs. So the current state
    of each generator is saved beside the position. Making it raises ValueError for a random order that no state
    contains.
    """

    def __init__(self, loader: Stateful, share: DataRank) -> None:
        _check_order_is_kept(loader)
        self._loader = loader
        self._share = share
        self.is_over = False
        """Whether the loader has yielded all batches of the epoch under way."""
        self._resumed_over = False
        self._is_iterated = False  # whether an iteration has begun in this epoch

    def begin(self) -> bool:
        """Return whether to iterate over the loader: False once after a resume at an epoch's end.

        A loader at its end, such as torchdata's, would yield the next epoch's batches.
        """
        is_empty, self._resumed_over = self._resumed_over, False
        self.is_over = is_empty
        self._is_iterated = True
        return not is_empty

    def start_epoch(self) -> None:
        """Begin another epoch, in a new iteration, also if a `break` has ended the last one.

        A DataLoader's state would else be that of the iteration left behind, and a resume would continue it.
        """
        if self._is_iterated and not self.is_over and isinstance(self._loader, DataLoader):
            self._loader.load_state_dict({})  # torchdata's StatefulDataLoader drops its iterator
        self.is_over = self._resumed_over = self._is_iterated = False

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the number of ranks, and the generators' states."""
        place = self._loader.state_dict()  # may begin the epoch, and draw
        drawn = {name: generator.get_state() for name, generator in _generators(self._loader).items()}
        share = {"world_size": self._share.size, "share": self._share.rank}
        return {**share, "state": place, "generators": drawn, "is_over": self.is_over}

    def check_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError for a position of another number of ranks, or of a loader with other generators."""
        own = self._share
        saved = (state.get("share", own.rank), state["world_size"])
        if saved != (own.rank, own.size):
            raise ValueError(
                f"the loader's position is that of share {saved[0]} of {saved[1]} of the data, and this rank reads "
                f"share {own.rank} of {own.size}: samples would be lost or come twice; resume with as many ranks, "
                "or give trainer.loader() the dataset, whose position fits any number of them"
            )
        drawn, here = set(state.get("generators", {})), set(_generators(self._loader))
        if "generators" in state and drawn != here:
            raise ValueError(
                f"the loader's place is that of one with {_listed(drawn)}, and this one has {_listed(here)}: later "
                "epochs would have another order; make the loader as it was"
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position."""
        self._loader.load_state_dict(state["state"])
        self.is_over = self._resumed_over = state.get("is_over", False)
        if "generators" not in state:  # an older checkpoint
            return
        # Order: a StatefulDataLoader restores its position only when it is iterated, or asked for its state, and draws
        # from its generators meanwhile. So this happens first, and then the generators get their saved states.
        self._loader.state_dict()
        for name, generator in _generators(self._loader).items():
            generator.set_state(state["generators"][name])


def _generators(loader: object) -> dict[str, torch.Generator]:
    """Return the generators of the loader and its samplers, each once, by the attribute that holds it."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = {
        "generator": loader,
        "sampler.generator": getattr(loader, "sampler", None),
        "batch_sampler.generator": batch_sampler,
        "batch_sampler.sampler.generator": getattr(batch_sampler, "sampler", None),
    }
    found: dict[str, torch.Generator] = {}
    for name, holder in holders.items():
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator) and all(generator is not each for each in found.values()):
            found[name] = generator
    return found


def _check_order_is_kept(loader: object) -> None:
    """Raise ValueError for a random order that is not in the loader's state: a resume would draw another one."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = getattr(batch_sampler, "sampler", getattr(loader, "sampler", None))
    draws = isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler)
    generator = getattr(sampler, "generator", None)
    if not draws and not isinstance(generator, torch.Generator):
        return
    if not isinstance(batch_sampler, Stateful) and not (
        type(batch_sampler) is not BatchSampler and _iterates_with_state(sampler, generator)
    ):
        raise ValueError(
            f"this {type(loader).__name__} draws its order by {type(sampler).__module__}.{type(sampler).__name__}, "
            "which keeps it in no state: a resume would continue in another order, with samples lost and others twice. "
            "Give it shuffle=True, or a sampler and batch_sampler with state_dict, such as those of "
            "torchdata.stateful_dataloader.sampler; or give trainer.loader() the dataset"
        )


def _iterates_with_state(sampler: Any, generator: object) -> bool:
    """Return whether the sampler, or its iterator, has a state; leave its generator unchanged."""
    if isinstance(sampler, Stateful):
        return True
    before = generator.get_state() if isinstance(generator, torch.Generator) else None
    is_stateful = isinstance(iter(sampler), Stateful)
    if before is not None:
        generator.set_state(before)  # type: ignore[attr-defined]
    return is_stateful


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)) or "no generator"
