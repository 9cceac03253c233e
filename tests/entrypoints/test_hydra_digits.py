"""The Hydra script: under python, on two ranks, and as a job whose hyperparameters choose from its config groups."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker

SOURCES = Path(__file__).parents[2] / "entrypoints" / "hydra_digits"


def hyperparameters(manifests: Path) -> dict[str, object]:
    """What the newest checkpoint says that the run was started with."""
    newest = max(manifests.glob("step-*/manifest.json"))
    return dict(json.loads(newest.read_text())["hyperparameters"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher", [[sys.executable], [sys.executable, "-m", "smddp.cli", "run", "--processes-per-node", "2"]]
)
def test_a_command_line_chooses_the_config(launcher, tmp_path):
    command = [*launcher, str(SOURCES / "train.py"), "optimizer=adam", "model.depth=3", "epochs=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "test_accuracy=" in done.stderr
    recorded = hyperparameters(tmp_path / "runs" / "train" / "checkpoints")
    assert recorded["model"] == {"width": 32, "depth": 3}
    assert recorded["optimizer"] == {"_target_": "torch.optim.Adam", "lr": 0.003}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"], "one directory for all ranks, the run's"


@pytest.mark.slow
def test_a_jobs_hyperparameters_choose_the_config_on_two_hosts():
    given = {"optimizer": "adam", "model.depth": 3, "epochs": 1, "+note": "${lr}"}
    with LocalSageMaker() as platform:
        place = f"s3://{platform.default_bucket}/hydra"
        estimator = Estimator(
            entry_point="train.py",
            source_dir=str(SOURCES),
            role=platform.role,
            sagemaker_session=platform.session,
            instance_type="ml.g5.xlarge",
            instance_count=2,
            distribution="torchrun",
            max_run=120,
            hyperparameters=given,
            checkpoint_s3_uri=place,
        )
        estimator.fit()
        s3 = platform.session.boto_session.client("s3")
        listed = s3.list_objects_v2(Bucket=platform.default_bucket, Prefix="hydra/")["Contents"]
        newest = max(entry["Key"] for entry in listed if entry["Key"].endswith("/manifest.json"))
        manifest = json.loads(s3.get_object(Bucket=platform.default_bucket, Key=newest)["Body"].read())
    assert manifest["world_size"] == 2
    recorded = manifest["hyperparameters"]
    assert recorded["model"] == {"width": 32, "depth": 3}
    assert recorded["optimizer"] == {"_target_": "torch.optim.Adam", "lr": 0.003}
    assert recorded["note"] == "\\${lr}", "as Hydra writes a text that refers to nothing"
