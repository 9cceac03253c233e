"""A rank that fails ends the whole job soon, and every host tells of that rank."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys, time
import torch
import torch.distributed as dist
import smddp

def load_labels():
    raise ValueError("label 12 is not in 0..9")

def main(job):
    import os
    failing, way = int(os.environ["FAILING"]), os.environ["WAY"]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))  # holds on to the process group
    dist.all_reduce(torch.ones(1))
    if job.cluster.rank == failing:
        time.sleep(0.5)
        print(time.time(), flush=True)
        if way == "exit":
            sys.exit(3)
        load_labels()
    if way == "busy":
        time.sleep(600)  # not in a collective: hears of it all the same
    model(torch.ones(1, 2)).sum().backward()

from smddp.distributed import first_failure
first_failure._HEED_SECONDS, first_failure._READERS_SECONDS = 1.0, 60.0
smddp.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("failing", "way"), [(1, "raise"), (0, "raise"), (1, "exit"), (0, "busy")])
def test_both_hosts_tell_of_the_rank_that_failed(
    failing: int, way: str, run_ranks: Callable[..., list[Any]], tmp_path: Path
) -> None:
    hosts = [tmp_path / "host-0", tmp_path / "host-1"]
    ranks = run_ranks(PROGRAM, [{"SMDDP_RUN_DIR": str(host), "FAILING": str(failing), "WAY": way} for host in hosts])

    assert time.time() - float(ranks[failing].printed) < 20
    assert ranks[failing].code == (3 if way == "exit" else 1), ranks
    assert ranks[1 - failing].code == 1, ranks
    cause = "SystemExit: 3" if way == "exit" else "ValueError: label 12 is not in 0..9"
    for host in hosts:
        assert (host / "output" / "failure").read_text().startswith(f"{cause} (rank {failing} of 2 on "), ranks
