"""A parameter server of the script's own, under the distribution of that name: `torch.distributed.rpc` on two hosts."""

from __future__ import annotations

import pytest

from estimators import Estimator
from estimators.local import Docker, LocalSageMaker
from tests.docker.images import Images
from tests.docker.lanes import SCRIPTS, upload_digits


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_trains_the_weights_of_the_server_on_the_other_host(
    images: Images, capfd: pytest.CaptureFixture[str]
) -> None:
    with LocalSageMaker(docker=Docker()) as platform:
        Estimator(
            entry_point="parameter_server.py",
            source_dir=SCRIPTS,
            image_uri=images.smddp,
            instance_type="ml.m5.large",
            instance_count=2,
            distribution="parameter_server",
            role=platform.role,
            sagemaker_session=platform.session,
            environment={"OMP_NUM_THREADS": "1"},
            max_run=250,
        ).fit({"training": upload_digits(platform)})
    assert "rank=1 of 2 loss=2.303 -> " in capfd.readouterr().out
