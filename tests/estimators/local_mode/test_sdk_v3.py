"""With SDK V3 alone a job of ``instance_type="local"`` runs in containers, as with V2."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.docker.images import build_images
from tests.sdk_v3 import python_with_sdk_v3

pytestmark = [pytest.mark.docker, pytest.mark.sdk_v3, pytest.mark.slow, pytest.mark.timeout(600)]

TRAIN = """
import os
from pathlib import Path
from sys import argv

print(os.environ["SM_CURRENT_HOST"], "of", os.environ["SM_HOSTS"], argv[1:], flush=True)
Path(os.environ["SM_MODEL_DIR"], os.environ["SM_CURRENT_HOST"]).write_bytes(
    Path(os.environ["SM_CHANNEL_TRAINING"], "numbers.txt").read_bytes()
)
Path("/opt/ml/checkpoints", os.environ["SM_CURRENT_HOST"]).touch()
"""

SUBMIT = """
import sys
from pathlib import Path
from sagemaker.core.inputs import TrainingInput
from estimators import Estimator

here = Path.cwd()
job = Estimator(
    "train.py",
    source_dir="code",
    instance_type="local",
    instance_count=2,
    image_uri=sys.argv[1],
    hyperparameters={"lr": 0.5},
    output_path=f"file://{here}/out",
    checkpoint_s3_uri=f"file://{here}/checkpoints",
).fit({"training": TrainingInput(f"file://{here}/data")})
print(job.status, job.model_data)
"""


def test_a_local_job_runs_on_two_hosts(tmp_path: Path) -> None:
    python = python_with_sdk_v3(tmp_path / "v3")
    here = tmp_path / "here"
    for name, text in {"code/train.py": TRAIN, "data/numbers.txt": "1 2 3"}.items():
        (here / name).parent.mkdir(parents=True)
        (here / name).write_text(text)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [python, "-c", SUBMIT, build_images().smddp],
        cwd=here,
        env={**clean, "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for host in ("algo-1", "algo-2"):
        assert f"{host} | {host} of [\"algo-1\",\"algo-2\"] ['--lr', '0.5']" in done.stdout
    assert done.stdout.splitlines()[-1] == f"Completed file://{here}/out/model.tar.gz"
    with tarfile.open(here / "out" / "model.tar.gz") as archive:
        assert sorted(archive.getnames()) == ["algo-1", "algo-2"]
    assert sorted(path.name for path in (here / "checkpoints").iterdir()) == ["algo-1", "algo-2"]
