"""The order of data that is split between hosts, as SageMaker's ``ShardedByS3Key`` distributes the objects.

A host cannot read another host's samples, so no order over all samples could survive a change of hosts. Each host
orders its own part; all take the same number of samples in each step, and the same number of steps.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from smddp.data.order.data_order import Partition, Tail
from smddp.data.order.sampler import ElasticSampler, Share
from smddp.display_text import counted
from smddp.whole_numbers import as_whole_number, as_whole_numbers

logger = logging.getLogger(__name__)

OnChange = Literal["refuse", "restart"]
"""What a resume does if hosts or parts changed: ``refuse`` raises an error; ``restart`` begins the epoch anew."""


class HostShardedSampler(ElasticSampler):
    """The training data of one rank, out of its host's part; the indices count the samples of that part.

    An epoch takes as many samples of each host as the smallest part has. Larger parts leave the rest of their order
    out; with a shuffle, each epoch leaves out different samples.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        global_batch: int,
        host: int,
        local_rank: int = 0,
        local_world_size: int = 1,
        accumulate: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "drop",
        fingerprints: Sequence[str] | None = None,
        on_change: OnChange = "refuse",
    ) -> None:
        """Describe the order.

        Args:
            sizes: The number of samples of each host, the same list on all ranks.
            global_batch: Samples of an optimizer step, over all hosts, ranks and micro-batches.
            host: This host's number, from 0.
            local_rank: This process's rank on its host.
            local_world_size: The number of processes on each host.
            accumulate: Micro-batches of an optimizer step on each rank.
            seed: Decides the order, with epoch, host and size.
            shuffle: False keeps the order of each part.
            tail: As in `ElasticSampler`. Each host counts as many samples as the smallest part has.
            fingerprints: One for each host's part, from `smddp.data.fingerprint`.
            on_change: What to do with a position saved on other hosts or parts: refuse it, or restart its epoch.

        Raises:
            ValueError: The numbers do not fit each other.
        """
        sizes = [as_whole_number("size", size) for size in sizes]
        global_batch, host, local_rank, local_world_size = as_whole_numbers(
            global_batch=global_batch, host=host, local_rank=local_rank, local_world_size=local_world_size
        )
        hosts = len(sizes)
        if on_change not in get_args(OnChange):
            raise ValueError(f"on_change is {on_change!r}: give one of {', '.join(map(repr, get_args(OnChange)))}")
        if not 0 <= host < hosts:
            raise ValueError(f"host is {host}, and sizes are of {hosts} hosts, counted from 0: give one of them")
        if not 0 <= local_rank < local_world_size:
            raise ValueError(f"local_rank is {local_rank}: give 0 to local_world_size - 1 = {local_world_size - 1}")
        if fingerprints is not None and len(fingerprints) != hosts:
            raise ValueError(f"there are {len(fingerprints)} fingerprints and {hosts} sizes: give one for each host")
        smallest = min(sizes)
        if smallest < 1:
            raise ValueError(
                f"host {sizes.index(smallest)} has {smallest} samples, and so no step could be taken: give every "
                "host at least one object, with fewer hosts or more objects, or distribute the data FullyReplicated"
            )
        if tail == "drop" and smallest < global_batch // hosts:
            raise ValueError(
                f"host {sizes.index(smallest)} has {smallest} samples, and a step takes global_batch / hosts = "
                f"{global_batch} / {hosts} of each: choose a global_batch of at most {smallest * hosts}, or add data"
            )
        super().__init__(
            smallest * hosts,
            global_batch=global_batch,
            rank=host * local_world_size + local_rank,
            world_size=hosts * local_world_size,
            accumulate=accumulate,
            seed=seed,
            shuffle=shuffle,
            tail=tail,
        )
        self.sizes = sizes
        self.fingerprints = None if fingerprints is None else list(fingerprints)
        self.on_change: OnChange = on_change
        self.host = host
        self.local_rank = local_rank
        self._own = Partition(
            size=smallest,
            global_batch=global_batch // hosts,
            world_size=local_world_size,
            accumulate=accumulate,
            tail=tail,
        )
        if self.rank == 0 and sum(sizes) > self.size:
            logger.info(
                "the hosts have %d to %d samples each: an epoch takes %d of each, and leaves %d of %d out",
                smallest,
                max(sizes),
                smallest,
                sum(sizes) - self.size,
                sum(sizes),
            )

    @property
    def share(self) -> Share:
        """This host's data, divided among its ranks."""
        # With one seed, hosts whose parts have the same size would combine the same samples in every epoch.
        seed = self.seed * len(self.sizes) + self.host
        return Share(partition=self._own, rank=self.local_rank, size=self.sizes[self.host], seed=seed)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the data, the same on every rank: a small JSON object."""
        return {**super().state_dict(), "fingerprint": self.fingerprints}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position from `state_dict`. If the hosts or parts changed, ``on_change`` decides.

        Raises:
            ValueError: The position does not fit this order.
        """
        change = self.host_change(state)
        if change is not None:
            if self.on_change == "refuse":
                raise ValueError(
                    f"the position in the data was saved where {change}. Each host has other samples, so no order over "
                    "all of them survives that: resume with the same hosts and data, "
                    'or choose on_change="restart", which begins the epoch anew'
                )
            state = {**state, "sizes": self.sizes, "consumed": 0}
            state.pop("size", None)  # present if every host had all of the data
        compared = self.fingerprints is not None
        super().load_state_dict({**state, "fingerprint": None if compared else state.get("fingerprint")})
        if change is not None and self.rank == 0:
            logger.warning(
                "epoch %d begins anew, and gives some samples again: its position was saved where %s",
                self.epoch,
                change,
            )

    def host_change(self, state: Mapping[str, Any]) -> str | None:
        """Describe what changed about the hosts and their parts since a position was saved; None if nothing did."""
        sizes, fingerprints = state.get("sizes"), state.get("fingerprint")
        if not isinstance(sizes, list):
            return "every host had all of the data"
        if len(sizes) != len(self.sizes):
            return f"the data was sharded over {counted(len(sizes), 'host')}, and it is over {len(self.sizes)} now"
        for host, (before, now) in enumerate(zip(sizes, self.sizes, strict=True)):
            if before != now:
                return f"host {host} had {before} samples, and it has {now} now"
        if isinstance(fingerprints, list) and self.fingerprints is not None and fingerprints != self.fingerprints:
            pairs = zip(fingerprints, self.fingerprints, strict=True)
            host = next(number for number, (before, now) in enumerate(pairs) if before != now)
            return f"host {host} had other data (its fingerprint differs)"
        return None

    def _identity(self) -> dict[str, Any]:
        identity = {**super()._identity(), "sizes": self.sizes}
        del identity["size"]  # so that a sampler of fully replicated data refuses this position
        return identity
