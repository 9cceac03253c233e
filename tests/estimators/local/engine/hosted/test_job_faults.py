"""When an attempt's faults come: at a step that a line says, once all hosts run, and never after its end."""

from __future__ import annotations

import threading
import time

from estimators.local.chaos import Chaos, JobFault, LoseHost, Reclaim
from estimators.local.engine.hosted.job_faults import AttemptFaults, JobFaults
from estimators.local.engine.hosted.states import Ending
from tests.estimators.local.engine.hosted.test_record import training
from tests.estimators.local.submitted_jobs import await_that


def test_a_fault_at_a_step_comes_with_the_first_line_that_says_it_or_a_later_one() -> None:
    job, lost, said = training(), list[str](), list[str]()
    faults = JobFaults(job, Chaos([LoseHost(step=20)])).begin_attempt(["algo-1"], said.append)
    faults.start(lost.append)
    for line in ("epoch=1 step=19 loss=20", "last_step=30", "steps=30"):
        faults.read(line)
    time.sleep(0.05)
    assert lost == []
    faults.read("epoch=1 step=25 loss=0.1")
    await_that(lambda: lost == ["algo-1"], pause=0.01)
    faults.end()
    assert said == [
        "[platform] chaos: lose-host step=20 is set for this attempt",
        "[platform] chaos: lose-host step=20: now",
    ]


def test_a_line_that_comes_before_all_hosts_run_counts_once_they_do() -> None:
    job = training(spot=True)
    faults = JobFaults(job, Chaos([Reclaim(step=1)])).begin_attempt(["algo-1"], lambda _: None)
    faults.read("step=1")
    faults.start(lambda _: None)
    assert job.await_ending() is Ending.INTERRUPT
    faults.end()


def test_a_reclaim_of_a_job_that_is_about_to_end_says_that_it_comes_too_late() -> None:
    job, said = training(spot=True), list[str]()
    faults = JobFaults(job, Chaos([Reclaim(seconds=0)])).begin_attempt(["algo-1"], said.append)
    job.stop()
    faults.start(lambda _: None)
    await_that(lambda: len(said) == 3, pause=0.01)
    faults.end()
    assert said[2].startswith("[platform] chaos: reclaim seconds=0 comes too late: job is Stopping or about to end")


def begun(faults: JobFaults, *hosts: str) -> AttemptFaults:
    return faults.begin_attempt(hosts or ["algo-1"], lambda _: None)


def test_an_attempt_meets_one_fault_of_a_kind_and_the_next_one_the_next() -> None:
    set_: list[JobFault] = [Reclaim(step=1), Reclaim(step=5), LoseHost(step=1, host="algo-2")]
    chaos = Chaos(set_)
    faults = JobFaults(training(spot=True), chaos)
    for _ in range(3):
        begun(faults).end()
    begun(faults, "algo-1", "algo-2").end()
    begun(JobFaults(training(), chaos)).end()
    assert [met for _, met in chaos.describe()] == [1, 1, 1]


def test_a_job_that_is_no_spot_job_leaves_reclaims_to_others() -> None:
    chaos = Chaos([Reclaim(step=1)])
    begun(JobFaults(training(), chaos)).end()
    assert chaos.describe() == [("reclaim step=1", 0)]


def test_a_job_that_waits_for_capacity_ends_with_what_it_needs_of_the_platform() -> None:
    job = training()
    waiting = threading.Thread(target=job.await_capacity, args=(3600,), daemon=True)
    waiting.start()
    job.platform_failed("InternalServerError: the storage is gone", for_good=True)
    waiting.join(60)
    assert not waiting.is_alive()
