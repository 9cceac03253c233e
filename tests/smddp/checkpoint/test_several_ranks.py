"""Several ranks save and load one checkpoint, and fail together or not at all: this file, run by several processes."""

from __future__ import annotations

import logging
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import smddp
from smddp.checkpoint import Checkpointer, list_checkpoints
from smddp.checkpoint.run_state import capture_random_state, restore_random_state
from smddp.checkpoint.save.snapshot import WHOLE_BELOW
from smddp.checkpoint.stores.filesystem import FileSystem
from smddp.distributed import Ranks, is_communication_error
from smddp.errors import CheckpointError

if TYPE_CHECKING:
    from tests.fork_python import ForkPython

pytestmark = pytest.mark.usefixtures("fork_python")


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


def failure(action: Callable[[], object]) -> tuple[str, bool]:
    """The error that an action ends in, and whether it is another rank's."""
    try:
        action()
    except CheckpointError as error:
        return str(error), is_communication_error(error)
    raise AssertionError("no error")


def draws() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(1))]


def journey(rank: int, directory: Path) -> dict[str, Any]:
    """What each of two ranks does that met in a file; each has a directory of its own, and only rank 0's is used."""
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    told: dict[str, Any] = {}
    mine = directory / f"host-{rank}"
    part, other = Part({"weight": torch.arange(10.0), "step": (1, None)}), Part([1.5])
    checkpointer = Checkpointer(mine, {"part": part, "other": other})
    told["nothing there"] = checkpointer.load()

    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    checkpointer.save(1, metrics={"loss": 0.5})
    told["drawn after saving"] = draws()
    part.state["weight"].fill_(7)  # what is saved has been copied
    told["size"] = getattr(checkpointer.wait(), "size", None)

    part.state, other.state = None, None
    manifest = checkpointer.load()
    assert manifest is not None
    told["manifest"] = (manifest.step, manifest.world_size, manifest.metrics)
    told["state"] = (part.state["weight"].tolist(), part.state["step"], other.state)
    told["drawn after loading"] = draws()

    def save_durably(step: int) -> None:
        checkpointer.save(step)
        checkpointer.wait()

    for failing in range(2):
        part.fails = rank == failing
        told[f"taking the state fails on {failing}"] = failure(lambda: save_durably(2))
        told[f"load fails on {failing}"] = failure(checkpointer.load)
    part.fails = False
    started = time.monotonic()
    with pytest.raises(ValueError if rank == 1 else CheckpointError) as raised:
        checkpointer.save(2, metrics={"loss": 0.5 if rank == 0 else "half"})  # type: ignore[dict-item]
        checkpointer.wait()
    told["a metric is not a number on 1"] = (str(raised.value), time.monotonic() - started)
    if rank == 0:
        next(mine.glob("step-000000000001/*/part.safetensors")).write_bytes(b"damaged")
    dist.barrier()
    told["all damaged"] = failure(checkpointer.load)
    save_durably(1)
    told["step again"] = getattr(checkpointer.load(), "step", None)
    checkpointer.close()
    dist.destroy_process_group()
    return told


def share_the_work(rank: int, directory: Path) -> dict[str, Any]:
    """What each of three ranks does that joined in the usual way: large states, and a disk that fails on one rank."""
    smddp.join()
    told: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(0)
    state = {f"layer.{index}": torch.randn(WHOLE_BELOW // 4, generator=generator) for index in range(7)}
    model, small = Part(dict(state)), Part({"step": torch.tensor(3)})
    checkpointer = Checkpointer(directory / "checkpoints", {"model": model, "small": small}, tolerate_failures=1)
    assert checkpointer.load() is None
    checkpointer.warm_up()
    checkpointer.save(1)
    told["report"] = checkpointer.wait()

    real_write = FileSystem.write
    for step, failing in enumerate(range(3), start=2):
        if rank == failing:
            FileSystem.write = full  # type: ignore[method-assign]
        for attempt in range(2):  # the first is tolerated
            checkpointer.save(10 * step + attempt)
            if attempt == 0:
                while checkpointer.busy:
                    pass
                checkpointer.check()
        told[f"the disk fails on {failing}"] = failure(checkpointer.wait)
        FileSystem.write = real_write  # type: ignore[method-assign]
        dist.barrier()
        checkpointer.save(1)
        checkpointer.wait()
    if rank == 1:
        model.state["another"] = torch.zeros(3)
    told["different states"] = failure(lambda: (checkpointer.save(50), checkpointer.wait()))
    model.state = None
    manifest = checkpointer.load()
    assert manifest is not None
    told["loaded"] = (manifest.step, all(torch.equal(model.state[name], state[name]) for name in state))
    checkpointer.close()
    smddp.leave()
    return told


def full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def go_on(rank: int, directory: Path) -> dict[str, Any]:
    """What each rank of a life of a run does, whatever their number: load, change what is its own, save."""
    world_size = int(os.environ["WORLD_SIZE"])
    smddp.join()
    loader, model = Part({"read": 1000 * world_size + rank}), Part({"weight": torch.zeros(WHOLE_BELOW)})
    with Checkpointer(
        directory.parent / "checkpoints", {"model": model}, per_rank={"loader": loader}, share="all"
    ) as checkpointer:
        manifest = checkpointer.load()
        step = 0 if manifest is None else manifest.step
        told = {"loader": loader.state, "model": float(model.state["weight"].mean()), "drawn": draws()}
        loader.state = {"read": 10 * (step + 1) + rank}
        model.state["weight"] += 1
        checkpointer.save(step + 1)
    smddp.leave()
    return told


def keep_statistics(rank: int, directory: Path) -> dict[str, Any]:
    """What each of two ranks does whose BatchNorm has seen other samples since DDP last made its buffers equal."""
    smddp.join()
    model = torch.nn.BatchNorm1d(WHOLE_BELOW // 8)
    model.running_mean.fill_(rank)
    model.running_var.fill_(rank)
    with Checkpointer(directory / "checkpoints", {"model": model}) as checkpointer:
        checkpointer.save(1)
        checkpointer.load()
    smddp.leave()
    return {"mean": model.running_mean.unique().tolist(), "variance": model.running_var.unique().tolist()}


def run_ranks(scenario: Callable[..., Any], world_size: int, directory: Path) -> list[dict[str, Any]]:
    """Let as many processes play a scenario; give what each tells."""
    from tests.ports import free_port  # a rank, which runs this file as its program, has no package of tests

    port = free_port()
    ranks = []
    for rank in range(world_size):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        if scenario is journey:
            place = {}
        command = [sys.executable, __file__, scenario.__name__, str(rank), str(directory)]
        environ = {**os.environ, **{name: str(value) for name, value in place.items()}}
        ranks.append(subprocess.Popen(command, env=environ))
    try:
        assert [rank.wait(timeout=100) for rank in ranks] == [0] * world_size
    finally:
        for process in ranks:
            process.kill()
    return [pickle.loads((directory / f"told-{rank}").read_bytes()) for rank in range(world_size)]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkPython) -> tuple[Path, list[dict[str, Any]]]:
    directory = tmp_path_factory.mktemp("two-ranks")
    with fork_server.in_use():
        return directory, run_ranks(journey, 2, directory)


@pytest.mark.slow
def test_both_ranks_start_without_a_checkpoint(told: Any) -> None:
    assert [each["nothing there"] for each in told[1]] == [None, None]


def test_small_state_is_written_by_rank_0_and_no_other_rank_needs_the_directory(told: Any) -> None:
    directory, results = told
    (info,) = list_checkpoints(directory / "host-0")
    assert info.valid
    assert {each["size"] for each in results} == {info.manifest.size}
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
    ("name", "text", "rank"),
    [
        ("load fails on 0", "rank 0: the checkpoint of step 1 does not fit this run's part: RuntimeError", 0),
        ("load fails on 1", "rank 1: the checkpoint of step 1 does not fit this run's part: RuntimeError", 1),
        ("all damaged", "none is valid (step-000000000001: part.safetensors has 7 bytes instead of", 0),
    ],
)
def test_an_error_on_one_rank_is_the_same_error_on_every_rank_and_an_echo_on_the_others(
    name: str, text: str, rank: int, told: Any
) -> None:
    texts, echoes = zip(*(each[name] for each in told[1]), strict=True)
    assert len(set(texts)) == 1
    assert text in texts[0]
    assert [not echo for echo in echoes] == [each == rank for each in range(2)]


@pytest.mark.parametrize("failing", [0, 1])
def test_a_rank_that_cannot_take_its_state_raises_at_once_and_the_others_learn_of_it(failing: int, told: Any) -> None:
    text, is_echo = told[1][failing][f"taking the state fails on {failing}"]
    assert text == "could not take the state: RuntimeError: the state is out of reach"
    assert not is_echo
    text, is_echo = told[1][1 - failing][f"taking the state fails on {failing}"]
    assert f"rank {failing}: could not take the state: RuntimeError: the state is out of reach; earlier" in text
    assert is_echo


def test_a_metric_that_is_not_a_number_on_one_rank_fails_the_save_on_all(told: Any) -> None:
    for text, seconds in (each["a metric is not a number on 1"] for each in told[1]):
        assert "the metric 'loss' is 'half': give a number" in text
        assert seconds < 60


def test_after_the_errors_all_ranks_go_on_together(told: Any) -> None:
    assert [each["step again"] for each in told[1]] == [1, 1]


@pytest.mark.slow
def test_ranks_share_the_work_and_the_failure_of_one(tmp_path: Path) -> None:
    results = run_ranks(share_the_work, 3, tmp_path)
    (info,) = list_checkpoints(tmp_path / "checkpoints")
    assert info.valid
    shared = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    small = ["ranks.safetensors", "small.safetensors", "state.json", "digests.json"]
    assert sorted(info.manifest.files) == sorted(shared + small)
    sizes = [info.manifest.files[name].size for name in shared]
    assert max(sizes) - min(sizes) < 1.1 * WHOLE_BELOW
    assert [each["loaded"] for each in results] == [(1, True)] * 3
    for failing in range(3):
        texts, echoes = zip(*(each[f"the disk fails on {failing}"] for each in results), strict=True)
        assert len(set(texts)) == 1
        assert f"rank {failing}: cannot write" in texts[0]
        assert "No space left on device" in texts[0]
        assert [not echo for echo in echoes] == [each == failing for each in range(3)]
    assert all("the state of rank 1 has not the same tensors" in each["different states"][0] for each in results)
    assert [each.name for each in (tmp_path / "checkpoints").iterdir()] == ["step-000000000001"]


@pytest.mark.slow
def test_any_number_of_ranks_goes_on_and_each_has_its_own_state_back(tmp_path: Path) -> None:
    lives = []
    for world_size in (2, 1, 3):
        directory = tmp_path / f"{len(lives)}"
        directory.mkdir()
        lives.append(run_ranks(go_on, world_size, directory))
    loaders = [[each["loader"]["read"] for each in life] for life in lives]
    assert loaders == [[2000, 2001], [10], [20, 3001, 3002]]
    assert [[each["model"] for each in life] for life in lives] == [[0, 0], [1], [2, 2, 2]]
    three = [each["drawn"] for each in lives[2]]
    assert len({tuple(each) for each in three}) == 3


def test_the_buffers_of_a_shared_model_are_those_of_rank_0(tmp_path: Path) -> None:
    assert run_ranks(keep_statistics, 2, tmp_path) == [{"mean": [0.0], "variance": [0.0]}] * 2
    (info,) = list_checkpoints(tmp_path / "checkpoints")
    assert "model-00002-of-00002.safetensors" in info.manifest.files


def test_more_ranks_than_before_get_random_numbers_of_their_own() -> None:
    torch.manual_seed(0)
    states = [capture_random_state()]
    drawn = []
    for rank in (0, 1, 2, 1):
        restore_random_state(states, rank=rank)
        drawn.append(draws())
    assert drawn[1] == drawn[3]
    for generator in range(3):
        assert len({each[generator] for each in drawn}) == 3
    assert drawn[0] == (restore_random_state(states, rank=0), draws())[1]


@pytest.mark.parametrize(
    ("backend", "device"),
    [("cpu:gloo,cuda:nccl", "cpu"), ("cpu:mpi,cuda:mpi", "cpu"), ("cuda:nccl", "cuda:3"), ("cuda:smddp", "cuda:3")],
)
def test_ranks_without_a_backend_for_the_cpu_talk_through_the_gpu(
    backend: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "is_initialized": True,
        "get_backend_config": backend,
        "get_rank": 1,
        "get_world_size": 2,
    }.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert Ranks.current() == Ranks(rank=1, world_size=2, device=torch.device(device))


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format=f"rank {sys.argv[2]}: %(message)s")
    this_rank, shared = int(sys.argv[2]), Path(sys.argv[3])
    (shared / f"told-{this_rank}").write_bytes(pickle.dumps(globals()[sys.argv[1]](this_rank, shared)))
