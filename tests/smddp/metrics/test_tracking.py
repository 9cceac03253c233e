import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest

from smddp.job import Job
from smddp.metrics.tracking import CsvFile, JsonLines, TrackedRun, Tracker, TrackerGroup
from smddp.secret_text import MASK


def run_at(step: int, tmp_path: Path, **hyperparameters: object) -> TrackedRun:
    environ = {"SMDDP_RUN_DIR": str(tmp_path / "run"), "SM_HPS": json.dumps(hyperparameters)}
    return TrackedRun(id="0123456789ab", step=step, job=Job.detect(environ))


def test_json_lines_tell_a_run_from_start_to_end(tmp_path: Path) -> None:
    run = run_at(0, tmp_path, lr=0.1, api_key="one-two")
    assert "one-two" not in repr(run)
    tracker = JsonLines()
    tracker.start(run)
    tracker.log(50, {"epoch": 0, "loss": 0.5, "bad": math.nan, "worse": -math.inf})
    tracker.checkpoint(40, "/here/step-40")
    tracker.finish("finished", "/the/model")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (run.job.output_data_dir / "metrics.jsonl").read_text()
    start, metrics, checkpoint, end = (json.loads(line, parse_constant=refuse) for line in text.splitlines())
    assert (start["event"], start["run"]) == ("start", "0123456789ab")
    assert start["hyperparameters"] == {"lr": 0.1, "api_key": MASK}
    assert metrics.pop("time") > 1.6e9
    assert metrics == {"step": 50, "epoch": 0, "loss": 0.5, "bad": None, "worse": None}
    assert (checkpoint["event"], checkpoint["step"], checkpoint["place"]) == ("checkpoint", 40, "/here/step-40")
    assert (end["event"], end["status"], end["model"]) == ("end", "finished", "/the/model")


@pytest.mark.parametrize("kind", [JsonLines, CsvFile])
def test_a_resume_removes_what_comes_again(kind: type[JsonLines | CsvFile], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "metrics"
    first = kind(path)
    first.start(run_at(0, tmp_path))
    for step in (10, 20, 30):
        first.log(step, {"loss": step / 10} | ({"step": 99.5} if kind is JsonLines else {}))
    with path.open("a") as file:
        file.write('{"step": 1')  # killed while it wrote

    second = kind(path)
    second.start(run_at(20, tmp_path))
    second.log(30, {"loss": 7.0})
    second.finish("stopped", None)
    text = path.read_text()
    if kind is CsvFile:
        assert text == "step,metric,value\n10,loss,1.0\n20,loss,2.0\n30,loss,7.0\n"
    else:
        losses = [(line["step"], line["loss"]) for line in map(json.loads, text.splitlines()) if "event" not in line]
        assert losses == [(10, 1.0), (20, 2.0), (30, 7.0)]


def test_a_run_from_the_beginning_writes_a_new_file(tmp_path: Path) -> None:
    for loss in (1.0, 2.0):
        tracker = CsvFile(tmp_path / "metrics.csv")
        tracker.start(run_at(0, tmp_path))
        tracker.log(1, {"a,b": loss})
        tracker.finish("finished", None)
    assert (tmp_path / "metrics.csv").read_text() == 'step,metric,value\n1,"a,b",2.0\n'


def test_a_tracker_that_fails_is_told_of_once_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Tracker):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            raise ConnectionError("no route to host")

    path = tmp_path / "metrics.csv"
    group = TrackerGroup([Broken(), CsvFile(path)])
    group.start(run_at(0, tmp_path))
    for step in (1, 2):
        group.log(step, {"loss": 0.5})
    group.checkpoint(1, "/here")
    group.finish("finished", None)
    assert caplog.messages == [
        "the tracker Broken failed, and gets nothing more; training continues: ConnectionError: no route to host"
    ]
    assert path.read_text().count("loss") == 2


def test_what_is_no_tracker_is_refused() -> None:
    with pytest.raises(TypeError, match="trackers has 'tensorboard', which is no tracker"):
        TrackerGroup(["tensorboard"])  # type: ignore[list-item]
