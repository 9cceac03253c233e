"""A process group that the script has made itself, in each of torch's ways, is the job's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import HashStore

from smddp.distributed import join, leave

PROGRAM = """
import json, os, sys
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset
import smddp
from smddp.distributed import Agreement
from smddp.process.preemption import StopSignal

way = os.environ["WAY"]
kept = ("RANK", "WORLD_SIZE") if way == "env" else ()
place = {name: os.environ.pop(name) if name not in kept else os.environ[name] for name in
         ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
rank = int(place["RANK"])
methods = {
    "env": "env://",
    "tcp": f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}",
    "file": f"file://{os.path.abspath('meeting')}",
}
if way != "env":
    del os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
dist.init_process_group("gloo", init_method=methods[way], rank=rank, world_size=2)

def train(job):
    membership = smddp.distributed.current_membership()
    cluster = membership.cluster
    assert (cluster.rank, cluster.world_size, cluster.local_rank, cluster.local_world_size) == (rank, 2, rank, 2)
    assert membership.ranks.gather(lambda: rank) == [0, 1]
    assert membership.ranks.from_rank(1, rank if rank == 1 else None) == 1
    stop = StopSignal()
    stop.requested = rank == 1
    assert Agreement(membership.ranks, stop).decide(1).stop
    model = torch.nn.Linear(1, 1)
    policy = smddp.CheckpointPolicy(every=3)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.01), checkpoints=policy)
    loader = trainer.loader(TensorDataset(torch.arange(24.0).reshape(24, 1)), batch_size=4)
    seen = []
    for _ in trainer.epochs(1):
        for (batch,) in trainer.batches(loader):
            seen += batch.flatten().tolist()
            trainer.step(trainer.model(batch).mean())
    print(json.dumps([job.cluster.rank, seen]))

if os.environ.get("RUN"):
    smddp.run(train)
smddp.join()
train(smddp.Job.detect(cluster=smddp.distributed.current_membership().cluster))
smddp.leave()
total = torch.ones(1)
dist.all_reduce(total)  # the group is the script's, and stays
assert total.item() == 2
smddp.join()
smddp.leave()
dist.destroy_process_group()
"""

DRIVER = """
import multiprocessing, os, time
import smddp

def train(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    smddp.join()

if __name__ == "__main__":
    processes = [multiprocessing.get_context("fork").Process(target=train, args=(rank,)) for rank in (0, 0, 1)]
    for process in processes:
        process.start()
    while sum(process.is_alive() for process in processes) > 1:
        time.sleep(0.01)
    for process in processes:  # the one that is left is rank 0, and waits for the launcher's rank 1
        process.kill()
"""


@pytest.mark.parametrize(("way", "run"), [("env", ""), ("tcp", ""), ("file", ""), ("tcp", "1")])
@pytest.mark.slow
def test_the_ranks_train_in_the_scripts_own_group(
    run_ranks: Callable[..., list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, run: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ranks = run_ranks(PROGRAM, [{"WAY": way, "RUN": run, "SMDDP_RUN_DIR": str(tmp_path / "run")}] * 2)
    assert [rank.code for rank in ranks] == [0, 0], ranks
    seen = [json.loads(rank.printed) for rank in ranks]
    assert [rank for rank, _ in seen] == [0, 1]
    assert sorted(seen[0][1] + seen[1][1]) == [float(number) for number in range(24)]


CONTRADICTION = """
import os
import torch.distributed as dist
import smddp
from smddp.errors import DistributedError

rank = int(os.environ["RANK"])
method = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
dist.init_process_group("gloo", init_method=method, rank=1 - rank, world_size=2)
dist.barrier()  # no rank ends while the other one still connects
try:
    smddp.join()
except DistributedError as error:
    print(error)
try:
    smddp.join(backend="nccl")
except DistributedError as error:
    print(error)
"""


def test_a_group_that_contradicts_the_environment_is_refused(run_ranks: Callable[..., list[Any]]) -> None:
    first, _ = run_ranks(CONTRADICTION)
    assert first.code == 0, first.logged
    ranks, backends = first.printed.splitlines()
    assert "this is rank 1 of 2, but it is rank 0 of 2 by RANK=0" in ranks
    assert "backend='nccl', but the script has made a process group with cpu:gloo" in backends


def test_a_group_of_one_is_adopted_and_stays() -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        membership = join()
        assert (membership.cluster.world_size, membership.store, membership.is_adopted) == (1, None, True)
        leave()
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_ranks_that_a_launchers_rank_spawns_again_are_refused(run_ranks: Callable[..., list[Any]]) -> None:
    # With a hash seed the driver is the real Python: a fork server's programs all began with the server's environment.
    (rank,) = run_ranks(DRIVER, [{"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "PYTHONHASHSEED": "0"}])
    assert rank.code == 0, rank.logged
    assert "two processes that multiprocessing spawned are rank 0 of 2 (RANK=0): a launcher has" in rank.logged
    assert "multiprocessing spawned this process as rank 1 of 2, below rank 0 of 2 (RANK=0)" in rank.logged
    assert rank.logged.count("Start the script with python, once a host") == 2


ON_TWO_HOSTS = """
import json, os
import torch.distributed as dist
import smddp

rank = int(os.environ["RANK"])
method = f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}"
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    del os.environ[name]
known = smddp.Cluster.detect()
dist.init_process_group("gloo", init_method=method, rank=rank, world_size=4)
cluster = smddp.join().cluster
print(json.dumps([known.launcher, known.rank, known.world_size, cluster.rank, cluster.world_size]))
smddp.leave()
dist.destroy_process_group()
"""


def test_as_many_ranks_on_each_host_of_a_job_train_in_their_own_group(run_ranks: Callable[..., list[Any]]) -> None:
    hosts = [{"SM_HOSTS": '["algo-1", "algo-2"]', "SM_CURRENT_HOST": f"algo-{1 + rank // 2}"} for rank in range(4)]
    ranks = run_ranks(ON_TWO_HOSTS, hosts)
    assert [rank.code for rank in ranks] == [0] * 4, ranks
    assert [json.loads(rank.printed) for rank in ranks] == [["sagemaker", rank // 2, 2, rank, 4] for rank in range(4)]
