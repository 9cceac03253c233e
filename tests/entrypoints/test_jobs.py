"""Every entry point as a job of two hosts on the embedded platform, as its first lines say it is started."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker
from tests.entrypoints.channels import (
    ENTRYPOINTS,
    copy_entrypoints,
    write_cifar10,
    write_fashion_mnist,
    write_text,
)
from tests.fork_python import ForkPython

TINY = {"steps": 4, "layers": 1, "width": 16, "block": 16, "sample_letters": 9}
# The channel, the hyperparameters, and what is printed at the end.
JOBS: dict[str, tuple[str | None, dict[str, Any], str]] = {
    "char_gpt.py": ("text", TINY, "step=4 epoch=1 test_loss="),
    "cifar10.py": ("cifar10", {"epochs": 1, "batch_size": 10}, "step=10 epoch=1/1 accuracy="),
    "ddp_tutorial.py": (None, {"demo": "checkpoint"}, "demo=checkpoint ranks=2 first_loss="),
    "image_classification.py": ("fashion", {"epochs": 1, "batch_size": 8}, "step=2 epoch=1/1 accuracy="),
    "language_model.py": (
        "text",
        {"steps": 4, "layers": 1, "width": 16, "context": 16, "batch_size": 4, "sample_bytes": 9},
        "step=4 epoch=1 test_loss=",
    ),
    "transfer_learning.py": ("fashion", {"epochs": 1, "batch_size": 8, "workers": 0}, "step=2 epoch=1/1 accuracy="),
}


@pytest.fixture(scope="module")
def sagemaker(fork_server: ForkPython) -> Iterator[LocalSageMaker]:
    with fork_server.in_use(), LocalSageMaker() as platform:
        yield platform


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The entry points, and the channels that they want."""
    directory = tmp_path_factory.mktemp("jobs")
    lists = write_cifar10(directory / "cifar10", train=[list(range(10)) * 2] * 5, test=list(range(10)))
    write_fashion_mnist(directory / "fashion", train=16, test=6)
    write_text(directory / "text")
    copy_entrypoints(directory / "code", lists)
    return directory


def run(script: str, sagemaker: LocalSageMaker, sources: Path, hosts: int = 2, **changed: Any) -> str:
    """What a job of a script prints, with some hyperparameters changed."""
    channel, hyperparameters, _ = JOBS[script]
    inputs = channel and {"training": sagemaker.session.upload_data(str(sources / channel), key_prefix=channel)}
    job = Estimator(
        entry_point=script,
        source_dir=str(sources / "code"),
        role=sagemaker.role,
        instance_type="ml.g5.xlarge",
        instance_count=hosts,
        distribution="torchrun",
        hyperparameters={**hyperparameters, **changed},
        checkpoint_s3_uri=f"s3://{sagemaker.session.default_bucket()}/checkpoints-of-{Path(script).stem}",
        sagemaker_session=sagemaker.session,
    ).fit(inputs, logs=False)
    return "\n".join(message for _, message in job.logs())


@pytest.mark.slow
@pytest.mark.parametrize("script", JOBS)
def test_it_runs_as_a_job_of_two_hosts(script: str, sagemaker: LocalSageMaker, sources: Path) -> None:
    printed = run(script, sagemaker, sources)
    assert "training on 2 CPU processes" in printed
    assert JOBS[script][2] in printed
    if script == "language_model.py":  # each host had pieces of the model
        place = f"s3://{sagemaker.session.default_bucket()}/checkpoints-of-language_model"
        assert f"the ranks save them to {place}" in printed
        printed = run(script, sagemaker, sources, hosts=1, steps=6)
        assert "step-000000000004" in printed
        assert "step=6 epoch=1 test_loss=" in printed


def test_each_has_its_job() -> None:
    assert set(JOBS) == {script.name for script in ENTRYPOINTS.glob("*.py")}


@pytest.mark.parametrize("script", JOBS)
@pytest.mark.slow
def test_its_first_lines_say_how_to_start_it(script: str) -> None:
    text = ast.get_docstring(ast.parse((ENTRYPOINTS / script).read_text())) or ""
    first = "\n".join(text.splitlines()[:9])
    for way in (f"python {script}", f"smddp run --processes-per-node 2 {script}", "srun", "Estimator("):
        assert way in first
