"""How a local job is broken off."""

from __future__ import annotations

from typing import Any

import pytest

from estimators.local_mode.fit import run_to_its_end


class Job:
    """A record and its runner, with a Ctrl-C in each of the calls that are named, one after the other."""

    name = "job"

    def __init__(self, *interrupted: str) -> None:
        self._interrupted = list(interrupted)
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call() -> Any:
            self.calls.append(name)
            if self._interrupted and self._interrupted[0] == name:
                del self._interrupted[0]
                raise KeyboardInterrupt
            return {"TrainingJobStatus": "Stopped"}

        return call


@pytest.mark.parametrize(
    ("interrupted", "calls"),
    [
        (["start"], ["start", "stop", "join", "describe"]),
        (["join"], ["start", "join", "stop", "join", "describe"]),
        (["join", "join"], ["start", "join", "stop", "join", "close", "join"]),
        (["join", "stop"], ["start", "join", "stop", "close", "join"]),
    ],
)
def test_whenever_ctrl_c_comes_once_more_the_hosts_end_before_fit_does(
    interrupted: list[str], calls: list[str]
) -> None:
    job: Any = Job(*interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_to_its_end(job, job)
    assert job.calls == calls
