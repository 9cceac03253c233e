"""The console of a platform whose jobs really run: it interrupts one, follows it over both its lives, and stops it."""

from __future__ import annotations

import re
from pathlib import Path

from estimators.console.place import Place
from estimators.console.server import Console
from estimators.local import LocalSageMaker
from estimators.metric_definition import regex_of_line
from tests.estimators.console.conftest import entered
from tests.estimators.local.submitted_jobs import await_end, await_that, job_request
from tests.fork_python import ForkPython

_SCRIPT = (
    "f=/opt/ml/checkpoints/step; i=$(cat $f || echo 0); while :; do i=$((i+1)); echo $i > $f; "
    "echo step=$i loss=0.$i time_data=0.2 time_forward=0.6; sleep 0.1; done"
)


def test_a_job_is_interrupted_followed_and_stopped(fork_python: ForkPython, tmp_path: Path) -> None:
    with LocalSageMaker(grace_seconds=5) as platform:
        place = Place(name="here", session=platform.boto_session, may_write=True, interrupt=platform.interrupt)
        request = job_request(
            platform,
            "spot",
            _SCRIPT,
            CheckpointConfig={"S3Uri": f"s3://{platform.default_bucket}/checkpoints"},
            EnableManagedSpotTraining=True,
            StoppingCondition={"MaxRuntimeInSeconds": 300, "MaxWaitTimeInSeconds": 600},
        )
        metrics = ("loss", "time_data", "time_forward")
        definitions = [{"Name": metric, "Regex": regex_of_line(metric)} for metric in metrics]
        request["AlgorithmSpecification"]["MetricDefinitions"] = definitions
        place.sagemaker.create_training_job(**request)
        with Console(place) as console:
            client = entered(console.link)

            def drawn(attempts: int) -> str:
                """The page, once it draws so many attempts."""
                page = client.text("/jobs/spot")
                lives = re.findall(r"<(?:polyline|circle) class=\"(?:line|dot) colour-0\"", page)
                return page if len(lives) == attempts else ""

            await_that(lambda: drawn(1))
            answer = client.ask("/jobs/spot/interrupt", "POST", Origin=client.origin)
            assert (answer.status, answer.headers["Location"]) == (303, f"{client.root}/jobs/spot")
            page = await_that(lambda: drawn(2))
            assert "attempt 2</text>" in page and '<span class="kind kind-lost"></span>Interrupted' in page
            assert re.findall(r"<span>(\w+)</span><b>(\d+\.\d) %</b>", page) == [("data", "25.0"), ("forward", "75.0")]
            assert client.ask("/jobs/spot/resume", "POST", Origin=client.origin).status == 409  # it still runs
            client.ask("/jobs/spot/stop", "POST", Origin=client.origin)
            assert await_end(platform, "spot")["TrainingJobStatus"] == "Stopped"
            await_that(lambda: 'data-poll="0"' in client.text("/jobs/spot"))
