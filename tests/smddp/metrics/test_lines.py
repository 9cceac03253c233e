import math
import re
from types import SimpleNamespace

import pytest

import smddp.metrics.lines
from smddp.metrics.lines import StepRate, metrics_line, report


def test_a_line_reads_as_documented() -> None:
    line = metrics_line(120, 3, {"loss": 0.12341, "lr": 0.05, "samples_per_second": 8123.4})
    assert line == "step=120 epoch=3 loss=0.1234 lr=0.05 samples_per_second=8123"


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
