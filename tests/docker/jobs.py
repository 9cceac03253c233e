"""The job of a cell: one script, unchanged, that differs in nothing but what starts it, the image and the place."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from estimators import Estimator
from estimators.local import LocalSageMaker
from estimators.training_job import TrainingJob
from tests.docker.cells import DISTRIBUTIONS, Cell
from tests.docker.images import Images

SCRIPTS = Path(__file__).parent / "scripts"
SMDDP_STAND_IN = Path(__file__).parents[1] / "stand_ins" / "smdistributed"
IMAGES = {"AWS's": Images().toolkit, "ours": Images().smddp}
SAMPLES = 232
EPOCHS = 10
LAST_STEP = 12 * EPOCHS
"""The script's global batches are of 20 samples, the last of an epoch of 12."""


def write_digits(path: Path) -> None:
    """The first of scikit-learn's images."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images[:SAMPLES].astype(np.uint8), digits.target[:SAMPLES].astype(np.int64)
    np.savez_compressed(path, train_images=images, train_labels=labels)


def upload_digits(platform: LocalSageMaker) -> str:
    """Where they then are."""
    with tempfile.TemporaryDirectory() as directory:
        write_digits(Path(directory) / "digits.npz")
        s3 = platform.boto_session.client("s3")
        s3.upload_file(f"{directory}/digits.npz", platform.default_bucket, "digits/digits.npz")
    return f"s3://{platform.default_bucket}/digits"


def estimator(cell: Cell, *, environment: Mapping[str, str] | None = None, **parameters: Any) -> Estimator:
    """The job of a cell; the same but for where it runs."""
    has_smddp = cell.distribution == "smdistributed.dataparallel"
    job = {"entry_point": "digits.py", "hyperparameters": {"epochs": EPOCHS}, **parameters}
    return Estimator(
        source_dir=SCRIPTS,
        dependencies=[SMDDP_STAND_IN] if has_smddp else None,
        image_uri=IMAGES[cell.toolkit],
        instance_count=2,
        distribution=DISTRIBUTIONS[cell.distribution],
        environment={"OMP_NUM_THREADS": "1", **(environment or {})},
        **job,
    )


def start(platform: LocalSageMaker, cell: Cell, **parameters: Any) -> TrainingJob:
    """The job of a cell on a platform: of hosts that are processes, or containers."""
    return estimator(
        cell,
        role=platform.role,
        sagemaker_session=platform.session,
        instance_type="ml.p4d.24xlarge",
        checkpoint_s3_uri=f"s3://{platform.default_bucket}/checkpoints-{time.time_ns()}",
        **{"max_run": 500, **parameters},
    ).fit({"training": upload_digits(platform)}, wait=False)


def log_of(job: TrainingJob) -> str:
    """All lines of all hosts."""
    return "\n".join(line for _host, line in job.logs())
