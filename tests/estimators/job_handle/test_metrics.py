import pytest

from estimators.job_handle.metrics import MetricReader
from estimators.log_reader import LogLine
from estimators.metric_definition import regex_of_line


def line(message: str) -> LogLine:
    return LogLine(timestamp=0, host="algo-1", message=message)


@pytest.mark.timeout(30)
def test_a_regex_that_never_ends_is_given_up_and_the_others_find_their_values(caplog: pytest.LogCaptureFixture) -> None:
    regexes = {"slow": r"(a+)+b", "loss": "loss=([0-9.]+)", "own": regex_of_line("own"), "(a+)+b": "((a+)+)b"}
    reader = MetricReader({"Name": name, "Regex": regex} for name, regex in regexes.items())
    try:
        found = [reader.values(line(f"loss=0.5 own=2 step=3 {'a' * 60}")) for _ in range(2)]
    finally:
        reader.close()
    assert [[(each.metric, each.value, each.step) for each in values] for values in found] == [
        [("loss", 0.5, 3.0), ("own", 2.0, 3.0)]
    ] * 2
    assert caplog.text.count("no more values of slow") == 1


def test_each_state_of_a_progress_bar_is_a_value_with_its_own_step() -> None:
    reader = MetricReader({"Name": name, "Regex": f"{name}=([0-9.]+)"} for name in ("loss", "step"))
    try:
        values = reader.values(line("step=1 loss=3\rstep=2 loss=2\r" + " " * 1000 + "loss=9\rstep=3 loss=1"))
    finally:
        reader.close()
    assert [(each.step, each.value) for each in values] == [(1.0, 3.0), (2.0, 2.0), (3.0, 1.0)]
