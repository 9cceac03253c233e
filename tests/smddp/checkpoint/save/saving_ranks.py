"""Several ranks, as threads of one process, that save the same state together."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from smddp.checkpoint import Retention
from smddp.checkpoint.save.attempt import Moment
from smddp.checkpoint.save.commit import Committer
from smddp.checkpoint.save.rank_saver import RankSaver, SaveFailedError
from smddp.checkpoint.save.save_group import ResultExchange, SaveGroup
from smddp.checkpoint.save.snapshot import WHOLE_BELOW, Snapshotter
from smddp.checkpoint.stores.directory import DirectoryStore
from smddp.distributed import Ranks, is_communication_error

RUN = "0123456789ab"
TENSORS = {f"layer.{index}": torch.full((WHOLE_BELOW // 4,), float(index)) for index in range(6)}


class Part:
    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        if isinstance(self.state, Exception):
            raise self.state
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class Job:
    """Several ranks in one process, with a store of keys as they meet in, and a directory each."""

    def __init__(self, directories: list[Path], *, writers: list[int] | None = None, seconds: float = 60.0) -> None:
        size = len(directories)
        self.keys = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.stores = [DirectoryStore(directory) for directory in directories]
        self.models = [Part(dict(TENSORS)) for _ in range(size)]
        self.loaders = [Part({"read": 10 + rank}) for rank in range(size)]
        self.ranks = []
        self.cancelled = [threading.Event() for _ in range(size)]
        self.saves = 0
        for rank in range(size):
            connection = TCPStore("localhost", self.keys.port)
            results = ResultExchange(connection, rank=rank, world_size=size, run=RUN, seconds=seconds)
            group = SaveGroup(
                ranks=Ranks(rank=rank, world_size=size),
                run=RUN,
                writers=list(range(size)) if writers is None else writers,
                results=results,
            )
            committer = Committer(self.stores[rank], keep=Retention(), hyperparameters={}, listener=None)
            snapshotter = Snapshotter(
                {"model": self.models[rank], "small": Part({"lr": 0.1})},
                {"loader": self.loaders[rank]},
                rank=rank,
                writers=group.writers,
            )
            self.ranks.append(RankSaver(self.stores[rank], group, committer, snapshotter))

    def save(self, step: int, *, missing: int | None = None) -> list[int | Exception | None]:
        """Let all ranks but a missing one save; give how it ended on each."""
        self.saves += 1

        def save(rank: int) -> int | Exception | None:
            if rank == missing:
                return None
            request = self.ranks[rank].request(self.saves, Moment(step=step))
            try:
                size = self.ranks[rank].save(request, self.cancelled[rank]).size
            except Exception as error:
                return error
            self.ranks[rank].prune(request)
            return size

        with ThreadPoolExecutor(len(self.ranks)) as pool:
            return list(pool.map(save, range(len(self.ranks))))


def assert_failed(outcomes: list[Any], *, on: int, text: str, environmental: bool) -> None:
    """All ranks have the same error; the one that has the cause is the only one to have it as its own."""
    assert all(isinstance(each, SaveFailedError) for each in outcomes), outcomes
    assert len({str(each) for each in outcomes}) == 1
    assert f"rank {on}: " in str(outcomes[0])
    assert text in str(outcomes[0])
    assert [is_communication_error(each) for each in outcomes] == [rank != on for rank in range(len(outcomes))]
    assert {each.environmental for each in outcomes} == {environmental}


def disk_fails(*_: object) -> None:
    raise OSError(28, "No space left on device")
