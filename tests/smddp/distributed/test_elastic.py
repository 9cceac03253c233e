"""torchrun's own agents, which count restarts each for itself, start ranks anew, and change the number of nodes."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

StartNode = Callable[..., "subprocess.Popen[str]"]

TRAINING = """
import json, os, signal, sys, time
from pathlib import Path
import torch
import smddp
from smddp.distributed import current_membership
from smddp.process.preemption import stop_signal

WAY = os.environ["WAY"]

def once(name):
    try:
        Path(name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 240
    def __getitem__(self, index): return torch.tensor([float(index)])

def main(job):
    cluster = job.cluster
    with open(f"places-{os.environ['NODE']}", "a") as places:
        print(f"{cluster.rank}/{cluster.world_size}", file=places)
    model = torch.nn.Linear(1, 1)
    policy = smddp.CheckpointPolicy(every=5)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=1e-6), checkpoints=policy)
    loader = trainer.loader(Numbers(), batch_size=4)
    started = current_membership().ranks.from_rank(0, time.time_ns() if cluster.is_main else None)
    with open(f"seen-{started}-{cluster.rank}", "w") as seen:
        for _ in trainer.epochs(1):
            for batch in trainer.batches(loader):
                print(json.dumps([trainer.steps, batch.int().flatten().tolist()]), file=seen, flush=True)
                trainer.step(trainer.model(batch).mean())
                if WAY == "fails" and trainer.steps == 8 and once(f"failed-{cluster.rank}"):
                    while cluster.rank < cluster.world_size - 1 and not stop_signal.requested:
                        time.sleep(0.01)  # ended by its agent, which does not count that
                    sys.exit(3)
                if WAY == "lost" and trainer.steps == 42:
                    Path("lost").touch()
                    while not Path("agent-lost").exists():
                        time.sleep(0.01)
                    os.kill(os.getpid(), signal.SIGKILL)
                if WAY != "stays" and cluster.world_size == 1:
                    for step, name in ((20, "alone"), (45, "alone-again")):
                        while trainer.steps == step and not stop_signal.requested:
                            Path(name).touch()
                            time.sleep(0.01)

smddp.run(main)
"""


@pytest.fixture
def node(port: int, tmp_path: Path) -> Iterator[StartNode]:
    """Starts torchrun's agent of one node, with one rank, in ``tmp_path``."""
    (tmp_path / "train.py").write_text(TRAINING)
    started: list[subprocess.Popen[str]] = []

    def start(name: str, nodes: str, *, address: str = "127.0.0.1", **environ: str) -> subprocess.Popen[str]:
        words = ["--nnodes", nodes, "--nproc-per-node", "1", "--max-restarts", "5", "--local-addr", address]
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job"]
        # So late may an agent come, or tell that it is there: one may get no core for seconds.
        conf = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=8"
        words += ["--rdzv-conf", conf, "--monitor-interval", "0.1", "train.py"]
        own = {
            "NODE": name,
            "OMP_NUM_THREADS": "1",
            "SMDDP_RUN_DIR": "run",
            "PYTHONPATH": str(Path(__file__).parents[3]),
            **environ,
        }
        with (tmp_path / f"log-{name}").open("a") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "torch.distributed.run", *words],
                    cwd=tmp_path,
                    env={**os.environ, **own},
                    stdout=log,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
            )
        return started[-1]

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def await_file(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.02)


def assert_they_end_well(nodes: list[subprocess.Popen[str]], directory: Path) -> None:
    for node, name in zip(nodes, ("first", "second"), strict=True):
        assert node.wait(timeout=60) == 0, (directory / f"log-{name}").read_text()


def samples_taken(directory: Path) -> list[int]:
    """Those of each step as they were taken last."""
    newest: dict[int, int] = defaultdict(int)
    taken: dict[tuple[int, int], list[int]] = defaultdict(list)
    for path in directory.glob("seen-*"):
        started = int(path.name.split("-")[1])
        for line in path.read_text().splitlines():
            step, samples = json.loads(line)
            newest[step] = max(newest[step], started)
            taken[step, started] += samples
    return sorted(sample for step, started in newest.items() for sample in taken[step, started])


@pytest.mark.slow
@pytest.mark.parametrize("own_store", ["0", "1"])
def test_nodes_whose_agents_counted_other_numbers_of_restarts_train_on(
    node: StartNode, tmp_path: Path, own_store: str
) -> None:
    environ = {"WAY": "fails", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": own_store}
    nodes = [node(name, "2", **environ) for name in ("first", "second")]
    assert_they_end_well(nodes, tmp_path)
    assert samples_taken(tmp_path) == list(range(240))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_each_sample_is_taken_once_by_one_two_one_and_two_nodes(node: StartNode, tmp_path: Path) -> None:
    # Agents that share their store with the ranks tell its address in their first round only (torch 2.15): a node that
    # comes later ends the job, whatever the ranks run.
    environ = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    # The one that stays keeps the agents' store. The other's address is the lower one, so its rank becomes rank 0.
    first = node("first", "1:2", **environ, WAY="fails", address="127.0.0.2")
    await_file(tmp_path / "alone")
    second = node("second", "1:2", **environ, WAY="lost")
    await_file(tmp_path / "lost")
    second.kill()
    second.wait()
    (tmp_path / "agent-lost").touch()
    await_file(tmp_path / "alone-again")
    second = node("second", "1:2", **environ, WAY="stays")
    assert_they_end_well([first, second], tmp_path)
    assert samples_taken(tmp_path) == list(range(240))
    # Alone until its rank fails, alone again, then beside the second, alone after that was killed, beside it again.
    places = (tmp_path / "places-first").read_text().split()
    assert [place for place, _ in itertools.groupby(places)] == ["0/1", "1/2", "0/1", "1/2"]
    assert places[:2] == ["0/1", "0/1"]
    assert set((tmp_path / "places-second").read_text().split()) == {"0/2"}
    assert not (tmp_path / "run" / "output" / "failure").exists()
