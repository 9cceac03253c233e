"""docs/console.png, from a job that really trained: ``python -m tests.console_screenshot`` makes it, in a minute."""

from __future__ import annotations

import tempfile
from pathlib import Path

from estimators import Estimator
from estimators.console.jobs import JobSource
from estimators.console.server import Console
from estimators.demo.run import entrypoints_directory, write_digits
from estimators.job_handle.events import MetricValue
from estimators.local import LocalSageMaker
from tests.chromium import chromium

PICTURE = Path(__file__).parents[1] / "docs" / "console.png"
_EPOCHS, _INTERRUPTED_AT = 6, 220


def main() -> None:
    """Train digits on two hosts, interrupt the job once, and take the picture of its page."""
    with LocalSageMaker() as platform, tempfile.TemporaryDirectory() as directory:
        write_digits(Path(directory, "digits.npz"))
        bucket, s3 = platform.default_bucket, platform.boto_session.client("s3")
        s3.upload_file(f"{directory}/digits.npz", bucket, "digits/digits.npz")
        job = Estimator(
            entry_point="image_classification.py",
            source_dir=str(entrypoints_directory()),
            role=platform.role,
            instance_type="ml.g5.xlarge",
            instance_count=2,
            distribution="torchrun",
            use_spot_instances=True,
            max_run=600,
            max_wait=1200,
            checkpoint_s3_uri=f"s3://{bucket}/checkpoints",
            hyperparameters={"epochs": _EPOCHS, "batch_size": 16, "lr": 0.02, "log_every": 5},
            sagemaker_session=platform.session,
        ).fit({"training": f"s3://{bucket}/digits"}, job_name="digits-spot", wait=False)
        interrupted = False
        for event in job.events():
            if isinstance(event, MetricValue) and (event.step or 0) >= _INTERRUPTED_AT and not interrupted:
                interrupted = True
                platform.interrupt(job.name)
        source = JobSource(name="local platform · .smddp", session=platform.boto_session)
        with Console(source) as console, chromium() as browser:
            page = browser.new_page(color_scheme="light", viewport={"width": 1160, "height": 800})
            page.goto(console.link)
            page.get_by_text(job.name).click()
            page.get_by_text("log", exact=True).click()
            page.wait_for_selector("svg.chart[data-log]")
            page.screenshot(path=PICTURE)


if __name__ == "__main__":
    main()
