"""Several ranks save and load one checkpoint, and fail together or not at all: this file, run by two processes."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from smddp.checkpoint import Checkpointer, rng
from smddp.checkpoint.ranks import Ranks
from smddp.distributed import is_communication_error
from smddp.errors import CheckpointError


class Part:
    """Something with a state, which fails when told to."""

    def __init__(self, state: Any = None) -> None:
        self.state = state
        self.fails = False

    def state_dict(self) -> Any:
        if self.fails:
            raise RuntimeError("the state is out of reach")
        return self.state

    def load_state_dict(self, state: Any) -> None:
        if self.fails:
            raise RuntimeError("the state does not fit")
        self.state = state


def message(action: Callable[[], object]) -> str:
    """The error that an action ends in."""
    try:
        action()
    except CheckpointError as error:
        return str(error)
    raise AssertionError("no error")


def is_an_echo(action: Callable[[], object]) -> bool:
    """Whether the error that an action ends in is another rank's."""
    try:
        action()
    except CheckpointError as error:
        return is_communication_error(error)
    raise AssertionError("no error")


def draws() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(1))]


def journey(rank: int, directory: Path) -> dict[str, Any]:
    """What each of two ranks does; each has a directory of its own, and only rank 0's is used."""
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    told: dict[str, Any] = {}
    mine = directory / f"host-{rank}"
    part, other = Part({"weight": torch.arange(10.0), "step": (1, None)}), Part([1.5])
    checkpointer = Checkpointer(mine, {"part": part, "other": other})
    told["nothing there"] = checkpointer.load()

    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    told["path"] = checkpointer.save(1, metrics={"loss": 0.5})
    told["drawn after saving"] = draws()

    part.state, other.state = None, None
    manifest = checkpointer.load()
    assert manifest is not None
    told["manifest"] = (manifest.step, manifest.world_size, manifest.metrics)
    told["state"] = (part.state["weight"].tolist(), part.state["step"], other.state)
    told["drawn after loading"] = draws()

    part.fails = rank == 0  # only rank 0 asks for the state
    told["save fails"] = message(lambda: checkpointer.save(2))
    told["save is an echo"] = is_an_echo(lambda: checkpointer.save(2))
    part.fails = rank == 1
    told["load fails"] = message(checkpointer.load)
    told["load is an echo"] = is_an_echo(checkpointer.load)
    part.fails = False
    if rank == 0:
        (mine / "step-000000000001" / "part.safetensors").write_bytes(b"damaged")
    dist.barrier()
    told["all damaged"] = message(checkpointer.load)
    told["saved again"] = checkpointer.save(1)
    told["step again"] = getattr(checkpointer.load(), "step", None)
    dist.destroy_process_group()
    return told


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("two-ranks")
    ranks = [subprocess.Popen([sys.executable, __file__, str(rank), directory]) for rank in range(2)]
    try:
        assert [rank.wait(timeout=90) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
    return directory, [pickle.loads((directory / f"told-{rank}").read_bytes()) for rank in range(2)]


def test_both_ranks_start_without_a_checkpoint(told: Any) -> None:
    assert [each["nothing there"] for each in told[1]] == [None, None]


def test_rank_0_writes_and_no_other_rank_needs_the_directory(told: Any) -> None:
    directory, results = told
    assert [each["path"] for each in results] == [directory / "host-0" / "step-000000000001"] * 2
    assert not (directory / "host-1").exists()


def test_every_rank_loads_the_same_state(told: Any) -> None:
    expected = (list(map(float, range(10))), (1, None), [1.5])
    assert [each["state"] for each in told[1]] == [expected, expected]
    assert [each["manifest"] for each in told[1]] == [(1, 2, {"loss": 0.5})] * 2


def test_every_rank_goes_on_with_its_own_random_numbers(told: Any) -> None:
    for each in told[1]:
        assert each["drawn after loading"] == each["drawn after saving"]
    assert told[1][0]["drawn after saving"] != told[1][1]["drawn after saving"]


@pytest.mark.parametrize(
    ("failure", "text"),
    [
        ("save fails", "RuntimeError: the state is out of reach"),
        ("load fails", "rank 1: the checkpoint of step 1 does not fit this run's part: RuntimeError"),
        ("all damaged", "none is valid (step-000000000001: part.safetensors has 7 bytes instead of"),
    ],
)
def test_an_error_on_one_rank_is_the_same_error_on_every_rank(failure: str, text: str, told: Any) -> None:
    first, second = (each[failure] for each in told[1])
    assert first == second
    assert text in first


def test_only_the_rank_with_the_cause_tells_of_it_as_its_own(told: Any) -> None:
    assert [each["save is an echo"] for each in told[1]] == [False, True]
    assert [each["load is an echo"] for each in told[1]] == [True, False]


def test_after_the_errors_all_ranks_go_on_together(told: Any) -> None:
    assert [each["step again"] for each in told[1]] == [1, 1]


def test_more_ranks_than_before_get_random_numbers_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    states = [rng.capture()]
    drawn = []
    for rank in (0, 1, 2, 1):
        rng.restore(states, rank=rank)
        drawn.append(draws())
    assert drawn[1] == drawn[3]
    for generator in range(3):
        assert len({each[generator] for each in drawn}) == 3
    assert drawn[0] == (rng.restore(states, rank=0), draws())[1]


def test_a_process_group_without_the_cpu_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend_config", lambda: "cuda:nccl")
    with pytest.raises(CheckpointError, match=r"'cuda:nccl'.*cpu:gloo,cuda:nccl"):
        Ranks.current()


if __name__ == "__main__":
    this_rank, shared = int(sys.argv[1]), Path(sys.argv[2])
    (shared / f"told-{this_rank}").write_bytes(pickle.dumps(journey(this_rank, shared)))
