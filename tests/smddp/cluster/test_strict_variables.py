from __future__ import annotations

import pytest

from smddp.cluster.strict_variables import Environment
from smddp.errors import ClusterError


@pytest.mark.parametrize("text", ["two", "-1", "1.5", "1_0", "+1", "٣", "0x1"])
def test_text_where_a_number_belongs_is_refused(text: str) -> None:
    with pytest.raises(ClusterError, match=r"RANK=.*expected a whole number of at least 0"):
        Environment({"RANK": text}).integer("RANK", beside="RANK")


def test_spaces_around_a_number_do_not_matter() -> None:
    assert Environment({"RANK": " 3\n"}).integer("RANK", beside="RANK").value == 3


def test_an_empty_variable_counts_as_not_set() -> None:
    environment = Environment({"RANK": "", "WORLD_SIZE": "2"})
    assert "RANK" not in environment
    with pytest.raises(ClusterError, match="WORLD_SIZE=2 is set, but RANK is not"):
        environment.text("RANK", beside="WORLD_SIZE")


def test_long_values_are_shown_short() -> None:
    assert len(Environment({"SM_HOSTS": "x" * 5000}).show("SM_HOSTS")) < 120


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"SM_HOSTS=\[algo-1 is not JSON .* expected a list"):
        Environment({"SM_HOSTS": "[algo-1"}).json("SM_HOSTS", expected="a list")


def test_port_of_a_job_is_stable_and_below_the_ephemeral_ports() -> None:
    ports = [Environment({"JOB": str(job)}).port_of_job("JOB", "STEP").value for job in range(2000)]
    assert min(ports) >= 10_000
    assert max(ports) < 30_000
    assert len(set(ports)) > 1800  # neighbours rarely meet
    assert ports[1] == Environment({"JOB": "1"}).port_of_job("JOB").value == 24_583
    assert ports[1] != Environment({"JOB": "1", "STEP": "1"}).port_of_job("JOB", "STEP").value
