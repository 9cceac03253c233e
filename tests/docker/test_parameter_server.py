"""A parameter server of the script's own, under the distribution of that name: `torch.distributed.rpc` on two hosts."""

from __future__ import annotations

import pytest

from estimators.local import LocalSageMaker
from tests.docker.cells import WITH_SERVER
from tests.docker.jobs import log_of, start
from tests.docker.proof import Proof


@pytest.mark.docker
@pytest.mark.slow
def test_a_worker_trains_the_weights_of_the_server_on_the_other_host(platform: LocalSageMaker, proof: Proof) -> None:
    job = start(platform, WITH_SERVER, entry_point="parameter_server.py")
    job.wait(logs=False)
    log = log_of(job)
    assert "rank=1 of 2 loss=2.303 -> " in log
    proof.check(WITH_SERVER, log)
