"""Tuning jobs from their creation to their end, over training jobs that take no time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from estimators.local.engine.errors import ApiError
from estimators.local.engine.records import NOTHING_KEPT, RecordStore
from estimators.local.engine.tuning import TuningOperations
from estimators.local.engine.tuning.study import Study

Request = Callable[..., dict[str, Any]]
OBJECTIVE = "FinalHyperParameterTuningJobObjectiveMetric"


class Client:
    """The operations as boto3 would show them."""

    def __init__(self, start_job: Any, store: RecordStore = NOTHING_KEPT, jobs: Mapping[str, Any] = {}) -> None:
        self.tuning = TuningOperations(start_job, jobs.get, "arn", store)

    def call(self, operation: str, **request: Any) -> dict[str, Any]:
        return self.tuning.operations[operation](request)

    def describe(self, name: str = "search") -> dict[str, Any]:
        return self.call("DescribeHyperParameterTuningJob", HyperParameterTuningJobName=name)

    def end(self, name: str = "search") -> dict[str, Any]:
        """Wait for a tuning job's end."""
        deadline = time.monotonic() + 60
        while "HyperParameterTuningEndTime" not in (found := self.describe(name)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return found

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        self.call("CreateHyperParameterTuningJob", **request)
        return self.end(request["HyperParameterTuningJobName"])

    def jobs(self, name: str = "search", **request: Any) -> list[dict[str, Any]]:
        operation = "ListTrainingJobsForHyperParameterTuningJob"
        return self.call(operation, HyperParameterTuningJobName=name, **request)["TrainingJobSummaries"]


@pytest.fixture
def jobs(make_jobs: Callable[..., Any], distance: Any) -> Any:
    return make_jobs(distance)


@pytest.fixture
def client(jobs: Any) -> Iterator[Client]:
    client = Client(jobs)
    yield client
    client.tuning.close("The tests are over.")


def limited(count: int | None, parallel: int = 2, **config: Any) -> dict[str, Any]:
    most = {} if count is None else {"MaxNumberOfTrainingJobs": count}
    return {**config, "ResourceLimits": {**most, "MaxParallelTrainingJobs": parallel}}


def test_a_search_tries_as_many_as_it_may_and_tells_the_best(client: Client, jobs: Any, make_request: Request) -> None:
    found = client.run(make_request(config=limited(5)))
    assert found["HyperParameterTuningJobStatus"] == "Completed"
    assert found["TrainingJobStatusCounters"]["Completed"] == found["ObjectiveStatusCounters"]["Succeeded"] == 5
    assert jobs.most_at_a_time <= 2
    assert {job.tuning_job for job in jobs.started} == {"arn:hyper-parameter-tuning-job/search"}
    listed = client.jobs(SortBy="FinalObjectiveMetricValue", MaxResults=1)
    assert found["BestTrainingJob"][OBJECTIVE] == {"Type": "Minimize", **listed[0][OBJECTIVE]}
    assert found["BestTrainingJob"]["TunedHyperParameters"].keys() == {"x"}
    assert found["ConsumedResources"] == {"RuntimeInSeconds": 10}
    assert [job["TrainingJobName"][:10] for job in client.jobs()] == [f"search-00{number}" for number in range(1, 6)]


def test_a_description_has_what_aws_adds_to_the_request(client: Client, make_request: Request) -> None:
    resources = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
    request = make_request()
    del request["TrainingJobDefinition"]["ResourceConfig"]
    request["TrainingJobDefinition"]["HyperParameterTuningResourceConfig"] = resources
    found = client.run(request)
    assert found["TrainingJobDefinition"]["ResourceConfig"] == resources
    static = found["TrainingJobDefinition"]["StaticHyperParameters"]
    assert static == {"epochs": "3", "_tuning_objective_metric": "loss"}
    assert found["HyperParameterTuningJobConfig"]["TrainingJobEarlyStoppingType"] == "Off"
    assert request["TrainingJobDefinition"]["StaticHyperParameters"] == {"epochs": "3"}


def test_the_same_seed_tries_the_same(client: Client, make_request: Request) -> None:
    for name in ("one", "two"):
        client.run(make_request(HyperParameterTuningJobName=name, config=limited(3, 1)))
    one, two = ([job["TunedHyperParameters"] for job in client.jobs(name)] for name in ("one", "two"))
    assert one == two


def test_a_grid_tries_every_point_once(make_jobs: Any, make_request: Request) -> None:
    client = Client(make_jobs(lambda hyperparameters: [float(hyperparameters["a"])]))
    values = [{"Name": "a", "Values": ["1", "2", "3"]}, {"Name": "b", "Values": ["x", "y"]}]
    ranges = {"ParameterRanges": {"CategoricalParameterRanges": values}}
    found = client.run(make_request(config=limited(None, Strategy="Grid", **ranges)))
    assert found["HyperParameterTuningJobStatus"] == "Completed"
    tried = [tuple(job["TunedHyperParameters"].values()) for job in client.jobs()]
    assert sorted(tried) == [(a, b) for a in "123" for b in "xy"]


def test_a_bayesian_search_comes_nearer_than_a_random_one(client: Client, make_request: Request) -> None:
    best = {}
    for strategy in ("Random", "Bayesian"):
        request = make_request(HyperParameterTuningJobName=strategy, config=limited(10, 1, Strategy=strategy))
        best[strategy] = client.run(request)["BestTrainingJob"][OBJECTIVE]["Value"]
    assert best["Bayesian"] < 0.5 * best["Random"]


def test_whole_and_logarithmic_values_lie_in_their_ranges(make_jobs: Any, make_request: Request) -> None:
    client = Client(make_jobs(lambda _: [1.0]))
    ranges = {
        "IntegerParameterRanges": [{"Name": "n", "MinValue": "1", "MaxValue": "4", "ScalingType": "Logarithmic"}],
        "ContinuousParameterRanges": [
            {"Name": "lr", "MinValue": "1e-6", "MaxValue": "1", "ScalingType": "Logarithmic"},
            {"Name": "beta", "MinValue": "0.5", "MaxValue": "0.999999", "ScalingType": "ReverseLogarithmic"},
        ],
    }
    client.run(make_request(config=limited(40, 4, ParameterRanges=ranges)))
    tried = [job["TunedHyperParameters"] for job in client.jobs(MaxResults=100)]
    assert {each["n"] for each in tried} == set("1234")
    assert sum(float(each["lr"]) < 1e-3 for each in tried) > 10
    assert all(1e-6 <= float(each["lr"]) <= 1 and 0.5 <= float(each["beta"]) <= 0.999999 for each in tried)
    assert sum(float(each["beta"]) > 0.99 for each in tried) > 10


def test_a_job_that_falls_behind_is_stopped_early(make_jobs: Any, make_request: Request) -> None:
    def values(hyperparameters: dict[str, str]) -> list[float]:
        return [abs(float(hyperparameters["x"]) - 3) + 1 / step for step in range(1, 9)]

    jobs = make_jobs(values)
    client = Client(jobs)
    found = client.run(make_request(config=limited(12, 1, TrainingJobEarlyStoppingType="Auto")))
    stopped = [job for job in jobs.started if job.stopped]
    assert 0 < len(stopped) < 9
    assert found["TrainingJobStatusCounters"]["Stopped"] == len(stopped)
    assert found["ObjectiveStatusCounters"]["Succeeded"] == 12
    best = found["BestTrainingJob"]["TrainingJobName"]
    assert best not in {job.name for job in stopped}


@pytest.mark.parametrize("values_a_look", [1, 4])
def test_hyperband_stops_most_before_their_time_and_all_at_the_end(
    make_jobs: Any, make_request: Request, values_a_look: int
) -> None:
    def values(hyperparameters: dict[str, str]) -> list[float]:
        return [abs(float(hyperparameters["x"]) - 3)] * 30

    jobs = make_jobs(values, values_a_look=values_a_look)
    bounds = {"HyperbandStrategyConfig": {"MinResource": 1, "MaxResource": 9}}
    Client(jobs).run(make_request(config=limited(30, 1, Strategy="Hyperband", StrategyConfig=bounds)))
    assert all(job.stopped for job in jobs.started)
    assert 5 < sum(len(job.shown) < 9 for job in jobs.started) < 30


def test_hyperband_takes_its_most_from_the_epochs(make_request: Request) -> None:
    from estimators.local.engine.tuning.request import Hyperband, TuningRequest

    assert TuningRequest.parse(make_request(config={"Strategy": "Hyperband"})).hyperband == Hyperband(least=1, most=3)


@pytest.mark.parametrize(
    ("criteria", "most"),
    [
        ({"TargetObjectiveMetricValue": 3.0}, 20),
        ({"BestObjectiveNotImproving": {"MaxNumberOfTrainingJobsNotImproving": 3}}, 60),
    ],
)
def test_a_search_that_has_what_it_was_to_find_ends(
    client: Client, jobs: Any, make_request: Request, criteria: dict[str, Any], most: int
) -> None:
    found = client.run(make_request(config=limited(None, 1, TuningJobCompletionCriteria=criteria)))
    assert found["HyperParameterTuningJobStatus"] == "Completed"
    assert 1 <= len(jobs.started) <= most
    if "TargetObjectiveMetricValue" in criteria:
        assert found["BestTrainingJob"][OBJECTIVE]["Value"] <= 3


def test_a_stop_ends_the_training_jobs_too(make_jobs: Any, make_request: Request) -> None:
    jobs = make_jobs(lambda _: [1.0] * 10**6)
    client = Client(jobs)
    client.call("CreateHyperParameterTuningJob", **make_request())
    while len(jobs.started) < 2:
        time.sleep(0.01)
    with pytest.raises(ApiError, match="has not ended; stop it"):
        client.call("DeleteHyperParameterTuningJob", HyperParameterTuningJobName="search")
    client.call("StopHyperParameterTuningJob", HyperParameterTuningJobName="search")
    found = client.end()
    assert found["HyperParameterTuningJobStatus"] == "Stopped"
    assert [job.stopped for job in jobs.started] == [True, True]
    client.call("DeleteHyperParameterTuningJob", HyperParameterTuningJobName="search")
    with pytest.raises(ApiError, match="There is no tuning job search"):
        client.describe()


def test_a_stop_between_two_proposals_starts_no_other_job(make_jobs: Any, make_request: Request) -> None:
    def stop(_hyperparameters: Any) -> list[float]:
        client.call("StopHyperParameterTuningJob", HyperParameterTuningJobName="search")
        return [1.0] * 10**6

    jobs = make_jobs(stop)
    client = Client(jobs)
    client.call("CreateHyperParameterTuningJob", **make_request())
    assert client.end()["HyperParameterTuningJobStatus"] == "Stopped"
    assert [job.stopped for job in jobs.started] == [True]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Events of a study that takes long to propose: it was asked, and it may answer."""
    begun, may_answer, ask = threading.Event(), threading.Event(), Study.ask

    def ask_slowly(study: Study) -> Any:
        begun.set()
        assert may_answer.wait(60)
        return ask(study)

    monkeypatch.setattr(Study, "ask", ask_slowly)
    yield begun, may_answer
    may_answer.set()


@pytest.mark.parametrize("end", ["Stopped", "Failed"])
def test_no_job_is_started_of_a_proposal_that_comes_after_the_end(
    client: Client, jobs: Any, make_request: Request, asked: tuple[threading.Event, threading.Event], end: str
) -> None:
    begun, may_answer = asked
    client.call("CreateHyperParameterTuningJob", **make_request())
    assert begun.wait(60)
    if end == "Stopped":
        client.call("StopHyperParameterTuningJob", HyperParameterTuningJobName="search")
    else:
        client.tuning.close("The platform was closed.")
    may_answer.set()
    assert client.end()["HyperParameterTuningJobStatus"] == end
    assert jobs.started == []


def test_the_first_reason_to_end_stays(
    client: Client, make_request: Request, asked: tuple[threading.Event, threading.Event]
) -> None:
    begun, may_answer = asked
    client.call("CreateHyperParameterTuningJob", **make_request())
    assert begun.wait(60)
    client.tuning.close("InternalServerError: the disk is full")
    client.tuning.close("The platform was closed.")
    may_answer.set()
    assert client.end()["FailureReason"] == "InternalServerError: the disk is full"


def test_a_job_is_listed_and_stopped_if_the_search_breaks_right_after_its_start(
    make_jobs: Any, make_request: Request
) -> None:
    def refuse(_members: Any) -> None:
        raise RuntimeError("no memory")

    jobs = make_jobs(lambda _: [1.0] * 10**6)

    def start(request: Any) -> Any:
        job = jobs(request)
        job.update = refuse
        return job

    client = Client(start)
    assert client.run(make_request())["FailureReason"] == "InternalServerError: no memory"
    assert [job["TrainingJobStatus"] for job in client.jobs()] == ["Stopped"]
    assert [job.stopped for job in jobs.started] == [True]


def test_a_platform_that_closes_gives_the_reason(make_jobs: Any, make_request: Request) -> None:
    jobs = make_jobs(lambda _: [1.0] * 10**6)
    client = Client(jobs)
    client.call("CreateHyperParameterTuningJob", **make_request())
    client.tuning.close("InternalServerError: the disk is full")
    client.tuning.join(60)
    found = client.describe()
    assert (found["HyperParameterTuningJobStatus"], found["FailureReason"]) == (
        "Failed",
        "InternalServerError: the disk is full",
    )
    with pytest.raises(ApiError, match="can start any more: InternalServerError: the disk is full"):
        client.call("CreateHyperParameterTuningJob", **make_request(HyperParameterTuningJobName="late"))


def test_failed_jobs_do_not_count_and_a_search_of_nothing_else_fails(
    client: Client, jobs: Any, make_request: Request
) -> None:
    jobs.failing = {0, 2}
    found = client.run(make_request())
    assert (found["HyperParameterTuningJobStatus"], found["ObjectiveStatusCounters"]["Failed"]) == ("Completed", 2)
    assert len(client.jobs(SortBy="FinalObjectiveMetricValue")) == 2  # those with a value
    jobs.failing = set(range(100))
    found = client.run(make_request(HyperParameterTuningJobName="worse"))
    assert found["HyperParameterTuningJobStatus"] == "Failed"
    assert found["FailureReason"].startswith("All training jobs failed.")
    assert "BestTrainingJob" not in found


@pytest.mark.slow
def test_a_warm_start_knows_what_its_parents_found(client: Client, make_request: Request) -> None:
    client.run(make_request(HyperParameterTuningJobName="parent", config=limited(10, 1, Strategy="Bayesian")))
    warm = {
        "ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": "parent"}],
        "WarmStartType": "IdenticalDataAndAlgorithm",
    }
    child = client.run(make_request(config=limited(1, 1, Strategy="Bayesian"), WarmStartConfig=warm))
    assert child["BestTrainingJob"][OBJECTIVE]["Value"] < 1  # a first draw of its own would be anywhere
    epochs = [{"Name": "epochs", "MinValue": "1", "MaxValue": "9"}]
    ranges = make_request()["HyperParameterTuningJobConfig"]["ParameterRanges"]
    tunable = make_request(
        HyperParameterTuningJobName="tunable",
        config=limited(1, 1, ParameterRanges={**ranges, "IntegerParameterRanges": epochs}, Strategy="Bayesian"),
        definition={"StaticHyperParameters": {}},
        WarmStartConfig=warm,
    )
    assert client.run(tunable)["BestTrainingJob"][OBJECTIVE]["Value"] < 1
    other = {"HyperParameterTuningJobObjective": {"Type": "Maximize", "MetricName": "loss"}}
    with pytest.raises(ApiError, match="has the objective Minimize loss, and this tuning job Maximize loss"):
        client.call(
            "CreateHyperParameterTuningJob",
            **make_request(HyperParameterTuningJobName="other", config=other, WarmStartConfig=warm),
        )


def test_names_are_unique_and_lists_are_filtered(client: Client, make_request: Request) -> None:
    for name in ("b-one", "a-one", "two"):
        client.run(make_request(HyperParameterTuningJobName=name))
    with pytest.raises(ApiError, match="there is one named two already"):
        client.call("CreateHyperParameterTuningJob", **make_request(HyperParameterTuningJobName="two"))
    listed = client.call("ListHyperParameterTuningJobs", NameContains="one", MaxResults=1)
    assert [job["HyperParameterTuningJobName"] for job in listed["HyperParameterTuningJobSummaries"]] == ["a-one"]
    rest = client.call("ListHyperParameterTuningJobs", NameContains="one", NextToken=listed["NextToken"])
    assert [job["Strategy"] for job in rest["HyperParameterTuningJobSummaries"]] == ["Random"]
    assert rest.keys() == {"HyperParameterTuningJobSummaries"}


def test_another_platform_knows_the_searches_and_what_they_found_but_goes_on_with_none(
    make_jobs: Callable[..., Any], distance: Any, make_request: Request, tmp_path: Path
) -> None:
    jobs, store = make_jobs(distance), RecordStore(tmp_path / "jobs")
    first = Client(jobs, store)
    ended = first.run(make_request())
    endless, killed = make_jobs(distance, values_a_look=0), threading.Event()

    def start(request: Mapping[str, Any]) -> Any:
        job = endless(request)
        if (
            len(endless.started) == 2
        ):  # the platform is killed when the training job runs, and the search is not told yet
            for end in ("", "-wal"):
                (tmp_path / f"killed{end}").write_bytes((tmp_path / f"jobs{end}").read_bytes())
            killed.set()
        return job

    second = Client(start, store)
    second.call("CreateHyperParameterTuningJob", **make_request(HyperParameterTuningJobName="broken-off"))
    assert killed.wait(60)
    second.tuning.close("The test is over.")

    known = {job.name: job for job in (*jobs.started, *endless.started)}
    next_one = Client(jobs, RecordStore(tmp_path / "killed"), known)
    found = next_one.describe()
    assert {name: found[name] for name in ended if name not in ("BestTrainingJob",)} == {
        name: ended[name] for name in ended if name not in ("BestTrainingJob",)
    }
    assert [job[OBJECTIVE] for job in next_one.jobs()] == [job[OBJECTIVE] for job in first.jobs()]
    broken_off = next_one.describe("broken-off")
    assert broken_off["HyperParameterTuningJobStatus"] == "Failed"
    assert "The local platform ended while the job ran" in broken_off["FailureReason"]
    assert len(next_one.jobs("broken-off")) == 2
    parent = {"ParentHyperParameterTuningJobs": [{"HyperParameterTuningJobName": "search"}]}
    warm = make_request(
        HyperParameterTuningJobName="warm",
        WarmStartConfig={**parent, "WarmStartType": "IdenticalDataAndAlgorithm"},
    )
    assert next_one.run(warm)["HyperParameterTuningJobStatus"] == "Completed"
