"""A plan shows the versions of its image: by the tag of AWS's images; of others nothing is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from estimators.plan import runtime
from estimators.plan.runtime import Runtime

AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training"
ON_AWS: Any = SimpleNamespace(boto_session=object())
HERE: Any = SimpleNamespace(boto_session=SimpleNamespace(runs_in_this_python=True))


@pytest.fixture(autouse=True)
def _this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "versions_here", lambda: ("2.8", "3.11"))


@pytest.mark.parametrize(
    ("image", "session", "told"),
    [
        (
            f"{AWS}:2.8.0-gpu-py312",
            ON_AWS,
            "PyTorch 2.8, Python 3.12 by the image's tag; here PyTorch 2.8, Python 3.11",
        ),
        (f"{AWS}:2.8.0-cpu-py311-ubuntu22.04-sagemaker", ON_AWS, "PyTorch 2.8, Python 3.11 by the image's tag"),
        (
            f"{AWS}-neuronx:1.13.1-neuronx-py310-sdk2.18.0-ubuntu20.04",
            ON_AWS,
            "PyTorch 1.13, Python 3.10 by the image's tag; here PyTorch 2.8, Python 3.11",
        ),
        ("mine/pytorch-training:2.8.0-py312", ON_AWS, "not known of this image"),
        (
            f"{AWS}:2.6.0-gpu-py312",
            HERE,
            "PyTorch 2.8, Python 3.11 of this machine, which runs the job without the image",
        ),
    ],
)
def test_says_what_is_known_of_the_versions_and_where_they_differ(image: str, session: Any, told: str) -> None:
    assert list(Runtime.of(image, session).lines()) == [("image", image), ("versions", told)]


def test_a_python_path_of_the_job_may_lead_to_any_module(build: Any, script: str) -> None:
    Path(script).write_text("import nowhere\n")
    told = {
        bool(environment): any("nowhere is imported" in each.found for each in plan.warnings)
        for environment in ({}, {"PYTHONPATH": "/opt/lib"})
        for plan in [build(environment=environment).plan()]
    }
    assert told == {False: True, True: False}


@pytest.mark.parametrize(("version", "warned"), [("2.7.1", False), ("2.8.0", True), ("2.8", False)])
def test_a_requirement_is_compared_with_the_images_pytorch(build: Any, script: str, version: str, warned: bool) -> None:
    path = Path(script)
    path.with_name("requirements.txt").write_text("torch==2.7.1\n")
    job = build(dependencies=[str(path.with_name("requirements.txt"))], framework_version=version)
    told = [problem.found for problem in job.plan().warnings if "pip replaces PyTorch 2.8.0" in problem.found]
    assert bool(told) is warned  # of "2.8" no release is known
