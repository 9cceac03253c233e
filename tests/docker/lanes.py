"""Runs the script in the cells of one place, and appends what became of each to a file.

``python -m tests.docker.lanes LANE RESULTS``. Lanes run beside each other as processes of their own: the SDK's Local
Mode runs one job at a time, and AWS's toolkit sleeps half a minute after each job of mpirun's.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from estimators import Estimator
from estimators.errors import EstimatorError, TrainingJobFailed
from estimators.local import Docker, LocalSageMaker
from estimators.training_job import TrainingJob
from tests.docker.cells import CELLS, DISTRIBUTIONS, Cell, append, outcome
from tests.docker.images import Images

SCRIPTS = Path(__file__).parent / "scripts"
SMDDP_STAND_IN = Path(__file__).parents[1] / "stand_ins" / "smdistributed"
IMAGES = {"AWS's": Images().toolkit, "ours": Images().smddp}

LANES: dict[str, Sequence[Cell]] = {
    "processes": [cell for cell in CELLS if cell.place == "processes"],
    "docker": [cell for cell in CELLS if cell.place == "Docker executor"],
    "local-mode-aws": [cell for cell in CELLS if cell.place == "Local Mode" and cell.toolkit == "AWS's"],
    "local-mode-ours": [cell for cell in CELLS if cell.place == "Local Mode" and cell.toolkit == "ours"],
}
AT_ONCE = 3


def write_digits(path: Path) -> None:
    """The first 240 of scikit-learn's images."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images, labels = digits.images[:240].astype(np.uint8), digits.target[:240].astype(np.int64)
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
    return Estimator(
        entry_point="digits.py",
        source_dir=SCRIPTS,
        dependencies=[SMDDP_STAND_IN] if has_smddp else None,
        image_uri=IMAGES[cell.toolkit],
        instance_count=2,
        distribution=DISTRIBUTIONS[cell.distribution],
        environment={"OMP_NUM_THREADS": "1", **(environment or {})},
        **parameters,
    )


def run_on_platform(platform: LocalSageMaker, cells: Sequence[Cell], results: Path) -> None:
    """All cells on one platform, a few at once."""
    data = upload_digits(platform)
    waiting = deque(sorted(cells, key=_sleeps_at_the_end, reverse=True))
    running: dict[Cell, TrainingJob] = {}
    while waiting or running:
        while waiting and sum(not _sleeps_at_the_end(cell) for cell in running) < AT_ONCE:
            cell = waiting.popleft()
            job = estimator(
                cell,
                role=platform.role,
                sagemaker_session=platform.session,
                instance_type="ml.p4d.24xlarge",
                max_run=1200,
                checkpoint_s3_uri=f"s3://{platform.default_bucket}/checkpoints-{time.time_ns()}",
            )
            running[cell] = job.fit({"training": data}, wait=False)
        for cell, started in list(running.items()):
            if started.status in ("Completed", "Failed", "Stopped"):
                append(_ended(cell, running.pop(cell)), results)
        time.sleep(0.2)


def run_in_local_mode(cells: Sequence[Cell], results: Path) -> None:
    """All cells in the SDK's Local Mode, one after the other."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        (place / "data").mkdir()
        write_digits(place / "data" / "digits.npz")
        for cell in cells:
            job = estimator(
                cell,
                instance_type="local",
                output_path=f"file://{place}/output",
                checkpoint_s3_uri=f"file://{place}/checkpoints-{time.time_ns()}",
            )
            refused, log = None, io.StringIO()
            with contextlib.redirect_stdout(log):
                try:
                    job.fit({"training": f"file://{place}/data"})
                except TrainingJobFailed as failure:
                    refused = failure.reason
                except EstimatorError as error:
                    refused = str(error)
            append(outcome(cell, refused=refused, log=log.getvalue()), results)


def _sleeps_at_the_end(cell: Cell) -> bool:
    return cell.toolkit == "AWS's" and cell.distribution in ("mpi", "pytorchddp", "smdistributed.dataparallel")


def _ended(cell: Cell, job: TrainingJob) -> Any:
    refused = None
    try:
        job.wait(logs=False)
    except TrainingJobFailed as failure:
        refused = failure.reason
    return outcome(cell, refused=refused, log="\n".join(line for _host, line in job.logs()))


def main(lane: str, results: str) -> None:
    """Run one lane."""
    cells = LANES[lane]
    if lane.startswith("local-mode"):
        run_in_local_mode(cells, Path(results))
        return
    docker = Docker() if lane == "docker" else None
    with LocalSageMaker(docker=docker) as platform:
        run_on_platform(platform, cells, Path(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
