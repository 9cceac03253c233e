import math
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import smddp.metrics.metric_lines
from smddp.metrics.metric_lines import LiveLine, LiveRun, StepRate, check_names, metrics_line, report


def test_a_line_reads_as_documented() -> None:
    line = metrics_line(120, 3, {"loss": 0.12341, "lr": 0.05, "samples_per_second": 8123.4}, epochs=5)
    assert line == "step=120 epoch=4/5 loss=0.1234 lr=0.05 samples_per_second=8123"


@pytest.mark.parametrize("name", ["step", "epoch", "trainer", "a b", "a=b", "a\n"])
def test_a_name_that_would_spoil_the_line_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="no metric can be called"):
        check_names({"loss": 1.0, name: 2.0})
    check_names({"loss": 1.0, "step_time": 2.0, "größe": 3.0})


def test_a_trainer_of_several_is_named_first() -> None:
    assert metrics_line(2, 0, {"loss": 0.5}, trainer="generator") == "trainer=generator step=2 epoch=1 loss=0.5"


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
    with caplog.at_level("INFO", logger="smddp.metrics.metric_lines"):
        report(7, 1, {"accuracy": 0.5})
    assert caplog.messages == ["step=7 epoch=2 accuracy=0.5"]


def test_the_rate_counts_from_the_last_lap(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 10.0, 12.0, 15.0])
    monkeypatch.setattr(smddp.metrics.metric_lines, "time", SimpleNamespace(monotonic=lambda: next(times)))
    rate = StepRate()
    rate.restart(100)
    assert rate.lap(110) == 5.0
    assert rate.lap(113) == 1.0


@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize("in_notebook", [False, True])
def test_without_logging_a_report_is_printed(in_notebook: bool) -> None:
    program = "from smddp.metrics.metric_lines import report; report(7, 1, {'accuracy': 0.5})"
    if in_notebook:
        program = f"import sys, types; sys.modules['ipykernel'] = types.ModuleType('ipykernel'); {program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    shown, empty = (done.stdout, done.stderr) if in_notebook else (done.stderr, done.stdout)
    assert (shown, empty) == ("step=7 epoch=2 accuracy=0.5\n", "")


@pytest.mark.usefixtures("fork_python")
@pytest.mark.parametrize("choice", ["basicConfig()", "disable(logging.INFO)"])
def test_whoever_wants_warnings_alone_sees_no_report(choice: str) -> None:
    program = (
        f"import logging; logging.{choice}; from smddp.metrics.metric_lines import report; report(7, 1, {{'a': 0.5}})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout + done.stderr == ""


class Watched:
    """A run whose steps and clock the test moves."""

    def __init__(self, **options: object) -> None:
        self.now, self.steps, self.checkpoint = 100.0, 0, None
        self.run = LiveRun(
            steps=lambda: self.steps,
            epoch=lambda: 3,
            newest_checkpoint=lambda: self.checkpoint,
            memory=lambda: 3 << 29,
            **options,  # type: ignore[arg-type]
        )
        self.line = LiveLine(self.run, clock=lambda: self.now)
        self.line.text(80)

    def after(self, seconds: float, steps: int, columns: int = 160) -> str:
        self.now += seconds
        self.steps += steps
        return self.line.text(columns)


def test_a_line_tells_how_far_how_fast_and_until_when() -> None:
    watched = Watched(total=1000, samples_a_step=256)
    watched.run.metrics = {"loss": 0.12345, "lr": 0.1, "time_data": 0.031}
    watched.checkpoint = 0  # type: ignore[assignment]
    watched.after(0, 0)
    line = watched.after(10, 200)
    assert line == (
        "epoch 4  step 200/1000  loss 0.1235  5120 samples/s  ETA 40 s  1.5 GiB  checkpoint 10 s ago  data 3%"
    )


def test_the_next_checkpoint_is_the_first_that_clock_or_steps_ask_for() -> None:
    watched = Watched(checkpoint_seconds=300.0, checkpoint_steps=500)
    assert watched.after(10, 10).endswith("checkpoint in 4:50 min")
    watched.checkpoint = 7  # type: ignore[assignment]
    assert watched.after(10, 390).endswith("checkpoint 0 s ago, next in 5 s")
    assert Watched(checkpoint_seconds=60.0).after(100, 10).endswith("checkpoint in 0 s")


def test_what_is_not_known_is_left_out() -> None:
    assert Watched().after(4, 10) == "epoch 4  step 10  2.5 steps/s  1.5 GiB"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (20, "step 200/1000"),
        (39, "epoch 4  step 200/1000  loss 0.5"),
        (79, "epoch 4  step 200/1000  loss 0.5  5120 samples/s  ETA 40 s  1.5 GiB"),
    ],
)
def test_a_narrow_terminal_shows_what_matters_most(columns: int, expected: str) -> None:
    watched = Watched(total=1000, samples_a_step=256)
    watched.run.metrics = {"loss": 0.5}
    watched.checkpoint = 7  # type: ignore[assignment]
    assert watched.after(10, 200, columns) == expected


def test_the_speed_is_that_of_the_last_half_minute() -> None:
    watched = Watched(total=100_000)
    for _ in range(10):
        watched.after(10, 1)
    for _ in range(4):
        line = watched.after(10, 1000)
    assert "100 steps/s" in line
    assert "ETA 15:59 min" in line
