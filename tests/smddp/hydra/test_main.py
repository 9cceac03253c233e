"""A Hydra script as a rank of its job: what it composes, what it records, and what it refuses."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import smddp.hydra
from smddp import Job
from smddp.distributed import leave

FILES = {
    "config.yaml": "defaults: [optimizer: sgd, _self_]\nlr: 0.1\nnote: null\ntoken: ${oc.env:TOKEN}\n"
    "model: {depth: 2}\n",
    "optimizer/sgd.yaml": "name: sgd\n",
    "optimizer/adam.yaml": "name: adam\n",
    "moved.yaml": "hydra: {job: {chdir: true}}\n",
    "swept.yaml": "hydra: {mode: MULTIRUN}\nlr: 1\n",
}


@pytest.fixture(autouse=True)
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        path = tmp_path / "conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setenv("TOKEN", "s3cret")
    monkeypatch.setattr(sys, "argv", ["train.py"])
    yield tmp_path / "conf"
    leave()


def start(conf: Path, seen: list[Any], name: str = "config") -> object:
    @smddp.hydra.main(config_path=str(conf), config_name=name, version_base="1.3")
    def main(config: DictConfig, job: Job) -> None:
        output_dir = Path(HydraConfig.get().runtime.output_dir)
        seen.append((OmegaConf.to_container(config, resolve=True), job, Path.cwd(), output_dir))

    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_jobs_hyperparameters_are_overrides_and_its_config_is_recorded(conf, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    given = {"lr": 0.5, "model.depth": 3, "optimizer": "adam", "note": "${lr} = '1'"}
    monkeypatch.setenv("SM_HPS", json.dumps(given))
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "0.5", "--model.depth", "3", "-m", "1"])  # the toolkit's
    seen: list[Any] = []
    assert start(conf, seen) == 0
    ((config, job, directory, output_dir),) = seen
    assert config == {
        "optimizer": {"name": "adam"}, "lr": 0.5, "note": "${lr} = '1'", "token": "s3cret", "model": {"depth": 3}
    }  # fmt: skip
    recorded = {**config, "token": "${oc.env:TOKEN}", "note": "\\${lr} = '1'"}
    assert job.hyperparameters == recorded, "interpolations and what is none, as Hydra writes them"
    assert (directory, output_dir) == (tmp_path, job.output_data_dir)
    assert OmegaConf.load(output_dir / ".hydra" / "config.yaml").optimizer.name == "adam"
    kept = [path.read_text() for path in output_dir.rglob("*.yaml")]
    assert len(kept) == 3
    assert "s3cret" not in caplog.text + "".join(kept) + json.dumps(dict(job.hyperparameters))
    assert not (tmp_path / "outputs").exists()


def test_outside_of_a_job_it_has_hydras_command_line(conf, monkeypatch, capsys):
    seen: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["train.py", "lr=0.25", "+model.width=8"])
    assert start(conf, seen) == 0
    assert seen[0][0]["lr"] == 0.25
    assert seen[0][0]["model"] == {"depth": 2, "width": 8}
    monkeypatch.setattr(sys, "argv", ["train.py", "--cfg", "job", "lr=7"])
    assert start(conf, seen) == 0
    assert "lr: 7" in capsys.readouterr().out
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("name", "argv", "told"),
    [
        ("config", ["lrr=s3cret"], "Could not override 'lrr'"),
        ("config", ["lr=s3cret,2"], "Ambiguous value for argument 'lr=…'"),
        ("nothing", [], "Cannot find primary config 'nothing'"),
        ("moved", [], "hydra.job.chdir is given, and a job of several ranks does not do it: write to HydraConfig"),
        ("swept", [], "hydra.mode=MULTIRUN: a job trains one config: give --multirun's values to as many jobs"),
    ],
)
def test_what_cannot_be_composed_is_the_failure_without_values(conf, monkeypatch, tmp_path, name, argv, told):
    monkeypatch.setattr(sys, "argv", ["train.py", *argv])
    assert start(conf, [], name) == 1
    failure = (tmp_path / "run" / "output" / "failure").read_text()
    assert told in failure
    assert "s3cret" not in failure


def test_multirun_is_refused_with_what_to_do(conf, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", "-m", "lr=1,2"])
    assert start(conf, []) == 2
    assert "a loop over Estimator.fit" in capsys.readouterr().err


def test_a_function_without_a_place_for_the_config_is_refused():
    with pytest.raises(TypeError, match=r"write train\(config, job\)"):

        @smddp.hydra.main()
        def train(job: Job) -> None: ...


SCRIPT = """
import os
import smddp, smddp.hydra

@smddp.hydra.main(config_path="conf", config_name=os.environ.get("NAME_" + os.environ["RANK"], "config"))
def main(config, job):
    with open(f"begun-{job.cluster.rank}", "w") as file:
        file.write(config.begun)

main()
"""


def run_on_two_ranks(directory: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2", "train.py"]
    command.append("+begun=${now:%H:%M:%S.%f}")
    return subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=directory, env=environ)


@pytest.mark.slow
@pytest.mark.usefixtures("fork_python")
def test_ranks_have_one_config_and_one_time(tmp_path, conf):
    done = run_on_two_ranks(tmp_path, **os.environ)
    assert done.returncode == 0, done.stderr
    begun = [(tmp_path / f"begun-{rank}").read_text() for rank in (0, 1)]
    assert begun[0] == begun[1]
    assert len(begun[0]) == len("00:00:00.000000")

    (conf / "other.yaml").write_text("lr: 1\n")
    refused = run_on_two_ranks(tmp_path, **os.environ, NAME_1="other")
    assert refused.returncode == 1
    assert "Rank 1 has composed another config than rank 0" in (tmp_path / "run" / "output" / "failure").read_text()
