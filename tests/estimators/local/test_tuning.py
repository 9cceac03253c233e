"""Tuning jobs of the SDK's own tuner, over training jobs that really run."""

from __future__ import annotations

import pytest

from estimators import Estimator
from estimators.local import LocalSageMaker
from tests.estimators.local.submitted_jobs import await_that

OBJECTIVE = """
import json, math
hyperparameters = json.load(open("/opt/ml/input/config/hyperparameters.json"))
assert hyperparameters["_tuning_objective_metric"] == "loss", hyperparameters
lr = float(json.loads(hyperparameters["lr"]))
print(f"loss={(math.log10(lr) + 2) ** 2:.6f}", flush=True)
"""
UNTIL_STOPPED = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print("loss=1", flush=True)
while True: time.sleep(0.1)
"""


@pytest.fixture
def make_tuner(tmp_path):
    def make(platform, script, **parameters):
        from sagemaker.tuner import ContinuousParameter, HyperparameterTuner

        (tmp_path / "objective.py").write_text(script)
        definitions = [{"Name": "loss", "Regex": r"loss=([0-9.]+)"}]
        estimator = Estimator(
            tmp_path / "objective.py",
            role=platform.role,
            instance_type="ml.m5.large",
            metric_definitions=definitions,
            sagemaker_session=platform.session,
        ).to_sagemaker()
        ranges = {"lr": ContinuousParameter(1e-5, 1.0)}
        others = {"metric_definitions": definitions, "objective_type": "Minimize"}
        return HyperparameterTuner(estimator, "loss", ranges, **others, **parameters)

    return make


@pytest.mark.slow
def test_the_sdks_tuner_searches_by_jobs_that_run(platform, make_tuner):
    tags = [{"Key": "team", "Value": "vision"}]
    limits = {"max_jobs": 4, "max_parallel_jobs": 2}
    tuner = make_tuner(platform, OBJECTIVE, strategy="Bayesian", random_seed=1, tags=tags, **limits)
    tuner.fit()
    client, name = platform.boto_session.client("sagemaker"), tuner.latest_tuning_job.name
    table = tuner.analytics().dataframe()
    assert list(table["TrainingJobStatus"]) == ["Completed"] * 4
    best = client.describe_training_job(TrainingJobName=tuner.best_training_job())
    assert best["FinalMetricDataList"][0]["Value"] == pytest.approx(min(table["FinalObjectiveValue"]))
    arn = client.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name)["HyperParameterTuningJobArn"]
    assert best["TuningJobArn"] == arn
    for each in (arn, best["TrainingJobArn"]):
        assert tags[0] in client.list_tags(ResourceArn=each)["Tags"]
    filters = [{"Name": "Source.SourceArn", "Operator": "Contains", "Value": name}]
    found = client.search(Resource="ExperimentTrialComponent", SearchExpression={"Filters": filters})["Results"]
    losses = sorted(result["TrialComponent"]["Metrics"][0]["Last"] for result in found)
    assert losses == pytest.approx(sorted(table["FinalObjectiveValue"]))
    listed = client.list_hyper_parameter_tuning_jobs(StatusEquals="Completed")["HyperParameterTuningJobSummaries"]
    assert [job["HyperParameterTuningJobName"] for job in listed] == [name]


@pytest.mark.slow
def test_the_sdk_attaches_to_a_tuner_and_begins_another_with_what_it_found(platform, make_tuner):
    from sagemaker.tuner import HyperparameterTuner, create_identical_dataset_and_algorithm_tuner

    first = make_tuner(platform, OBJECTIVE, strategy="Random", max_jobs=2, max_parallel_jobs=2)
    first.fit(job_name="to-attach-to")
    name = first.latest_tuning_job.name
    attached = HyperparameterTuner.attach(name, sagemaker_session=platform.session)
    assert attached.best_training_job() == first.best_training_job()
    assert "_tuning_objective_metric" not in attached.estimator.hyperparameters()
    second = create_identical_dataset_and_algorithm_tuner(name, sagemaker_session=platform.session)
    second.max_jobs, second.metric_definitions = 1, attached.metric_definitions  # which the SDK does not hand on
    second.fit(job_name=f"{name}-2")
    assert len(second.analytics().dataframe()) == 1


@pytest.mark.seaweedfs
@pytest.mark.slow
def test_a_search_starts_no_other_job_when_its_platform_ends(make_tuner, tmp_path, caplog):
    with LocalSageMaker(tmp_path / "platform", storage="disk") as platform:
        make_tuner(platform, UNTIL_STOPPED, strategy="Random", max_jobs=100).fit(wait=False)
        client = platform.boto_session.client("sagemaker")

        def trains():
            jobs = client.list_training_jobs()["TrainingJobSummaries"]
            return jobs and jobs[0]["SecondaryStatus"] == "Training"

        await_that(trains)
    assert [record.message.count("is Stopped") for record in caplog.records if "is Stopped" in record.message] == [1]
    assert "did not end in time" not in caplog.text
