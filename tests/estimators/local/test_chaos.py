"""Each fault, end to end: what a user's program sees of it, and what the logs say."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from estimators.job_handle.resumed_request import Changes, resumed_request
from estimators.local import LocalSageMaker
from estimators.local.chaos import LoseHost, NoCapacity, Reclaim, ServerError, Slow, Throttle, tag
from tests.estimators.local.submitted_jobs import await_end, await_that, describe, messages, submit

ONCE = Config(retries={"total_max_attempts": 1})
SPOT = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 100, "MaxWaitTimeInSeconds": 100},
}


@pytest.fixture
def sagemaker(platform: LocalSageMaker) -> Iterator[LocalSageMaker]:
    """The module's platform, without faults in the end."""
    yield platform
    platform.set_chaos()


def refusal(call: Any, **request: Any) -> tuple[str, int]:
    with pytest.raises(ClientError) as caught:
        call(**request)
    response = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


def statuses(job: dict[str, Any]) -> list[str]:
    return [each["Status"] for each in job["SecondaryStatusTransitions"]]


@pytest.mark.parametrize(
    ("service", "operation", "request_", "throttled", "failed"),
    [
        ("sagemaker", "list_training_jobs", {}, ("ThrottlingException", 400), ("InternalFailure", 500)),
        ("logs", "describe_log_groups", {}, ("ThrottlingException", 400), ("InternalFailure", 500)),
        ("sts", "get_caller_identity", {}, ("Throttling", 400), ("InternalFailure", 500)),
        ("monitoring", "list_metrics", {}, ("Throttling", 400), ("InternalFailure", 500)),
        ("s3", "list_buckets", {}, ("SlowDown", 503), ("InternalError", 500)),
    ],
)
@pytest.mark.slow
def test_a_request_is_throttled_and_fails_in_awss_form_and_then_no_more(
    sagemaker: LocalSageMaker,
    service: str,
    operation: str,
    request_: dict[str, Any],
    throttled: tuple[str, int],
    failed: tuple[str, int],
) -> None:
    name = "cloudwatch" if service == "monitoring" else service
    call = getattr(sagemaker.boto_session.client(name, config=ONCE), operation)
    sagemaker.set_chaos(Throttle(on=service), ServerError(on=service))
    assert [refusal(call, **request_), refusal(call, **request_)] == [throttled, failed]
    call(**request_)
    assert sagemaker.describe_chaos() == [(f"throttle on={service}", 1), (f"error on={service}", 1)]


def test_a_slow_request_comes_late_and_is_done(sagemaker: LocalSageMaker) -> None:
    s3 = sagemaker.boto_session.client("s3")
    sagemaker.set_chaos(Slow(on="s3:PUT", seconds=0.4))
    started = time.monotonic()
    s3.put_object(Bucket=sagemaker.default_bucket, Key="slow", Body=b"a")
    assert time.monotonic() - started > 0.4
    assert s3.get_object(Bucket=sagemaker.default_bucket, Key="slow")["Body"].read() == b"a"


def test_the_platforms_own_requests_meet_no_fault(sagemaker: LocalSageMaker) -> None:
    sagemaker.set_chaos(*(ServerError(on=service, probability=1) for service in ("s3", "logs")))
    job = await_end(sagemaker, submit(sagemaker, "echo kept; echo a > /opt/ml/model/a"))
    assert sagemaker.describe_chaos() == [("error on=s3 probability=1", 0), ("error on=logs probability=1", 0)]
    sagemaker.set_chaos()
    assert messages(sagemaker, job["TrainingJobName"]) == ["kept"]


def test_a_job_without_capacity_fails_in_awss_words_and_the_next_one_trains(sagemaker: LocalSageMaker) -> None:
    sagemaker.set_chaos(NoCapacity())
    failed = await_end(sagemaker, submit(sagemaker, "true"))
    assert failed["FailureReason"].startswith("CapacityError: Unable to provision requested ML compute capacity.")
    assert statuses(failed) == ["Starting", "Failed"]
    assert await_end(sagemaker, submit(sagemaker, "true"))["TrainingJobStatus"] == "Completed"


def test_a_job_waits_in_starting_for_capacity_and_can_be_stopped_there(sagemaker: LocalSageMaker) -> None:
    waits, stopped = (submit(sagemaker, "true", Tags=[tag(NoCapacity(seconds=each))]) for each in (0.5, 500))
    time.sleep(0.2)
    assert describe(sagemaker, stopped)["SecondaryStatus"] == "Starting"
    sagemaker.boto_session.client("sagemaker").stop_training_job(TrainingJobName=stopped)
    assert await_end(sagemaker, stopped)["TrainingJobStatus"] == "Stopped"
    job = await_end(sagemaker, waits)
    assert job["TrainingJobStatus"] == "Completed"
    starting = job["SecondaryStatusTransitions"][0]
    assert (starting["EndTime"] - starting["StartTime"]).total_seconds() > 0.4
    assert messages(sagemaker, waits)[0] == "[platform] chaos: no-capacity seconds=0.5: the job waits in Starting"


PREFERRED = [
    {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1},
    {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
]


@pytest.mark.parametrize(
    ("faults", "chosen"), [([], 0), ([NoCapacity(instance_type="ml.p4d.24xlarge")], 1), ([NoCapacity(count=2)], None)]
)
def test_a_job_takes_the_first_of_the_types_that_it_prefers_of_which_there_are_instances(
    sagemaker: LocalSageMaker, faults: list[NoCapacity], chosen: int | None
) -> None:
    script = 'tr -d "\\n " < /opt/ml/input/config/resourceconfig.json; echo'
    asked = {"ResourceConfig": {"InstancePreferences": PREFERRED, "VolumeSizeInGB": 1}}
    name = submit(sagemaker, script, Tags=[tag(*faults)] if faults else [], **asked)
    job = await_end(sagemaker, name)
    resources = job["ResourceConfig"]
    if chosen is None:
        assert job["FailureReason"].startswith("CapacityError: Unable to provision")
        assert resources == asked["ResourceConfig"]
        return
    selected = {f"Selected{name}": value for name, value in PREFERRED[chosen].items()}
    assert resources == {**asked["ResourceConfig"], **selected}
    told = json.loads(messages(sagemaker, name)[-1])
    assert told["current_instance_type"] == PREFERRED[chosen]["InstanceType"]
    assert len(told["hosts"]) == PREFERRED[chosen]["InstanceCount"]
    again = resumed_request(job, Changes(**dict.fromkeys(Changes.__dataclass_fields__)), "again")
    assert again["ResourceConfig"] == asked["ResourceConfig"]


def test_a_job_that_prefers_one_type_shows_it(sagemaker: LocalSageMaker) -> None:
    job = await_end(
        sagemaker, submit(sagemaker, "true", ResourceConfig={"InstancePreferences": PREFERRED[1:], "VolumeSizeInGB": 1})
    )
    assert job["ResourceConfig"]["SelectedInstanceType"] == "ml.g5.xlarge"


def test_a_type_that_a_job_does_not_ask_for_is_no_fault_of_it(sagemaker: LocalSageMaker) -> None:
    with pytest.raises(ClientError, match=r"ml\.p3\.2xlarge: the job asks for no such type, but ml\.m5\.large"):
        submit(sagemaker, "true", Tags=[tag(NoCapacity(instance_type="ml.p3.2xlarge"))])


@pytest.mark.parametrize("fault", [Reclaim(step=3), Reclaim(seconds=3)])
def test_a_spot_job_is_reclaimed_when_it_was_asked_for_and_begins_again(
    sagemaker: LocalSageMaker, fault: Reclaim, tmp_path: Path
) -> None:
    interrupted = tmp_path / "interrupted"  # ends the second attempt if the first was too late to write the checkpoint
    script = (
        "[ -e /opt/ml/checkpoints/a ] && exit; touch /opt/ml/checkpoints/a; trap 'exit 1' TERM; "
        f"for step in 1 2 3; do echo step=$step; done; until [ -e {interrupted} ]; do sleep 0.1; done"
    )
    place = {"S3Uri": f"s3://{sagemaker.default_bucket}/reclaim-{time.time_ns()}"}
    name = submit(sagemaker, script, Tags=[tag(fault)], CheckpointConfig=place, **SPOT)
    await_that(lambda: "Interrupted" in statuses(describe(sagemaker, name)))
    interrupted.touch()
    job = await_end(sagemaker, name)
    assert statuses(job) == [
        *("Starting", "Downloading", "Training", "Interrupted"),
        *("Starting", "Downloading", "Training", "Uploading", "Completed"),
    ]
    said = messages(sagemaker, name)
    assert said[0] == f"[platform] chaos: {fault} is set for this attempt"
    now = said.index(f"[platform] chaos: {fault}: now")
    if fault.step is not None:
        assert said[now - 1] == "step=3"


def test_the_host_that_is_named_is_lost(sagemaker: LocalSageMaker) -> None:
    sagemaker.set_chaos(LoseHost(seconds=0.2, host="algo-3"), LoseHost(seconds=0.2, host="algo-2"))
    name = submit(sagemaker, "trap 'exit 1' TERM; sleep 60 & wait", hosts=2)
    job = await_end(sagemaker, name)
    assert job["FailureReason"].startswith("InternalServerError: algo-2 was lost: its first process was killed")
    assert [met for _, met in sagemaker.describe_chaos()] == [0, 1]
    assert "[platform] chaos: lose-host seconds=0.2 host=algo-2: now" in messages(sagemaker, name, "algo-1")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("reclaim step=3", "only spot jobs are reclaimed. Set EnableManagedSpotTraining"),
        ("lose-host step=3 host=algo-2", "the job has no such host, but algo-1."),
        ("throttle on=s3", "throttle on=s3 is no fault of a job: set it for the platform"),
        ("lose-host steps=3", "lose-host has no steps=. Did you mean 'step'?"),
    ],
)
def test_a_tag_that_the_job_can_not_meet_is_refused(sagemaker: LocalSageMaker, value: str, reason: str) -> None:
    with pytest.raises(ClientError, match=reason):
        submit(sagemaker, "true", Tags=[{"Key": "smddp:chaos", "Value": value}])


def test_a_fault_of_requests_that_nobody_can_send_is_refused(sagemaker: LocalSageMaker) -> None:
    with pytest.raises(ClientError, match="No request to 'DescribeTrainingJobs' is answered here"):
        sagemaker.set_chaos(Throttle(on="DescribeTrainingJobs"))
    assert sagemaker.describe_chaos() == []
