import math
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import smddp.metrics.lines
from smddp.metrics.lines import StepRate, check_names, metrics_line, report


def test_a_line_reads_as_documented() -> None:
    line = metrics_line(120, 3, {"loss": 0.12341, "lr": 0.05, "samples_per_second": 8123.4})
    assert line == "step=120 epoch=3 loss=0.1234 lr=0.05 samples_per_second=8123"


@pytest.mark.parametrize("name", ["step", "epoch", "trainer", "a b", "a=b", "a\n"])
def test_a_name_that_would_spoil_the_line_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no metric can be called"):
        check_names({"loss": 1.0, name: 2.0})
    check_names({"loss": 1.0, "step_time": 2.0, "größe": 3.0})


def test_a_trainer_of_several_is_named_first() -> None:
    assert metrics_line(2, 0, {"loss": 0.5}, trainer="generator") == "trainer=generator step=2 epoch=0 loss=0.5"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.9731, "0.9731"),
        (1234567.8, "1234568"),
        (1e-5, "1e-05"),
        (-0.25, "-0.25"),
        (3, "3"),
        (123456789, "123456789"),
        (0.0, "0"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (3.2e38, "3.2e+38"),
    ],
)
def test_each_number_is_found_by_one_regular_expression(value: float, text: str) -> None:
    line = metrics_line(1, 0, {"before": 1.5, "value": value, "after": 2.5})
    found = re.search(r"\bvalue=([0-9.eE+-]+|nan|inf)", line)
    assert found is not None
    assert found[1] == text


def test_reports_are_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="smddp.metrics.lines"):
        report(7, 1, {"accuracy": 0.5})
    assert caplog.messages == ["step=7 epoch=1 accuracy=0.5"]


def test_the_rate_counts_from_the_last_lap(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 10.0, 12.0, 15.0])
    monkeypatch.setattr(smddp.metrics.lines, "time", SimpleNamespace(monotonic=lambda: next(times)))
    rate = StepRate()
    rate.restart(100)
    assert rate.lap(110) == 5.0
    assert rate.lap(113) == 1.0


@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize("in_notebook", [False, True])
def test_without_logging_a_report_is_printed(in_notebook: bool) -> None:
    program = "from smddp.metrics.lines import report; report(7, 1, {'accuracy': 0.5})"
    if in_notebook:
        program = f"import sys, types; sys.modules['ipykernel'] = types.ModuleType('ipykernel'); {program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    shown, empty = (done.stdout, done.stderr) if in_notebook else (done.stderr, done.stdout)
    assert (shown, empty) == ("step=7 epoch=1 accuracy=0.5\n", "")


@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize("choice", ["basicConfig()", "disable(logging.INFO)"])
def test_whoever_wants_warnings_alone_sees_no_report(choice: str) -> None:
    program = f"import logging; logging.{choice}; from smddp.metrics.lines import report; report(7, 1, {{'a': 0.5}})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout + done.stderr == ""
