"""What a job's program finds in its environment, whatever runs it."""

from __future__ import annotations

from estimators.local.engine.hosted.attempt import host_environment


def environment(*, platform: dict[str, str] | None = None, requested: dict[str, str] | None = None) -> dict[str, str]:
    return host_environment(
        names={"TRAINING_JOB_NAME": "job", "TRAINING_JOB_ARN": "arn"},
        region="eu-west-1",
        platform=platform or {},
        requested=requested or {},
    )


def test_nothing_leads_to_credentials_of_the_machine() -> None:
    found = environment()
    assert found["AWS_SHARED_CREDENTIALS_FILE"] == found["AWS_CONFIG_FILE"] == "/dev/null"
    assert found["AWS_EC2_METADATA_DISABLED"] == "true"


def test_the_platform_tells_region_and_job() -> None:
    found = environment()
    assert found["AWS_REGION"] == found["AWS_DEFAULT_REGION"] == "eu-west-1"
    assert (found["TRAINING_JOB_NAME"], found["TRAINING_JOB_ARN"]) == ("job", "arn")


def test_the_request_wins_over_the_platform_but_not_over_the_jobs_name() -> None:
    found = environment(
        platform={"AWS_ACCESS_KEY_ID": "local", "A": "platform"},
        requested={"A": "request", "TRAINING_JOB_NAME": "other", "TRAINING_JOB_ARN": "x"},
    )
    assert (found["A"], found["AWS_ACCESS_KEY_ID"]) == ("request", "local")
    assert (found["TRAINING_JOB_NAME"], found["TRAINING_JOB_ARN"]) == ("job", "arn")
