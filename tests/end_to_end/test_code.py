"""How code and what travels with it arrive in a job."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker
from estimators.source_code import package_requirements
from tests.wheels import wheel


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_unchanged_code_trains_again_without_an_upload(
    tmp_path: Path,
    estimator: Callable[..., Estimator],
    platform: LocalSageMaker,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "train.py").write_text(f"import layers\n\nprint('layers of', {tmp_path.name!r}, layers.COUNT)\n")
    (tmp_path / "layers.py").write_text("COUNT = 3\n")
    for _ in range(2):
        job = estimator("train.py", source_dir=str(tmp_path)).fit()
        assert ("algo-1", f"layers of {tmp_path.name} 3") in list(job.logs())
    code = [record.getMessage() for record in caplog.records if record.name == "estimators.request.code"]
    assert [message.partition(",")[0] for message in code] == ["uploaded the code", "code unchanged"]
    assert code[0].split()[-1] == code[1].split()[-1]


READS_CONFIG = """
import os
from dataclasses import dataclass
import smddp

@dataclass
class Config:
    sizes: list[int]
    name: str = ""
    lr: float = 0.0

def main(config: Config, job: smddp.Job) -> None:
    print(len(config.sizes), sum(config.sizes), config.name, config.lr, sorted(job.hyperparameters))
    print(len(os.environ["SM_HPS"]), flush=True)

smddp.run(main)
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_config_of_any_size_arrives(tmp_path: Path, estimator: Callable[..., Estimator]) -> None:
    (tmp_path / "train.py").write_text(READS_CONFIG)
    sizes = list(range(40_000))
    given = {"sizes": sizes, "name": "5", "lr": 0.5}
    build = estimator("train.py", source_dir=str(tmp_path), hyperparameters=given)
    assert "hyperparameters: sizes in the code's bundle (" in str(build.plan())
    job = build.fit()
    (line,) = {line for _, line in job.logs() if line.startswith("40000")}
    assert line == f"40000 {sum(sizes)} 5 0.5 ['lr', 'name', 'sizes']"
    assert ("algo-1", "2") in list(job.logs())  # SM_HPS is {}: it would be too long
    sent = job.describe()["HyperParameters"]
    assert "sizes" not in sent
    assert len(json.loads(sent["sagemaker_smddp_hyperparameters"])) == 64


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_script_that_never_heard_of_smddp_gets_them_as_ever(
    tmp_path: Path, estimator: Callable[..., Estimator]
) -> None:
    (tmp_path / "train.py").write_text("import os, sys\n\nprint(sys.argv[1:])\nprint(os.environ['SM_HPS'])\n")
    given = {f"h{number}": "é" * 1500 if number == 7 else number for number in range(120)}
    image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"
    build = estimator("train.py", source_dir=str(tmp_path), hyperparameters=given, image_uri=image)
    (problem,) = build.plan().warnings
    assert "The image must start the script by smddp's own train" in str(problem)
    arguments, variable = (line for _, line in build.fit().logs() if line[:1] in "[{")
    assert json.loads(variable) == given
    for name, value in given.items():
        assert f"'--{name}', '{value}'" in arguments


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_what_smddp_needs_travels_as_wheels_where_there_is_no_network(
    tmp_path: Path, estimator: Callable[..., Estimator], monkeypatch: pytest.MonkeyPatch
) -> None:
    for requirement in package_requirements():
        wheel(tmp_path / "index", requirement.name, "2000.0", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(
        "import os\nimport smddp\n\nprint('wheels', sorted(os.listdir('smddp-wheels')))\n"
        "print('asks', open('requirements.txt').read().split())\n"
    )
    build = estimator("train.py", source_dir=str(tmp_path / "code"), enable_network_isolation=True)
    assert build.plan().problems == ()
    lines = dict(line.split(" ", 1) for _, line in build.fit().logs() if line.startswith(("wheels", "asks")))
    assert lines["wheels"] == str(sorted(path.name for path in (tmp_path / "index").iterdir()))
    assert "'--no-index', '--find-links', 'smddp-wheels', 'numpy" in lines["asks"]
