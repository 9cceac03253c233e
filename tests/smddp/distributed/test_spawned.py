"""Ranks that each of a launcher's ranks spawns again are refused at once; one driver's ranks train."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

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
