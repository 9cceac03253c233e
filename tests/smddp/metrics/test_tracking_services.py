"""TensorBoard, MLflow and Weights & Biases as they are: each run is stopped, resumed, and read by its own reader."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest

import smddp.metrics.tracking
from smddp.job import Job
from smddp.metrics.tracking import TrackedRun, Tracker
from smddp.metrics.tracking_services import MLflow, TensorBoard, WandB


def run_at(step: int, tmp_path: Path) -> TrackedRun:
    environ = {"SMDDP_RUN_DIR": str(tmp_path / "run"), "SM_HPS": json.dumps({"lr": 0.1 if step == 0 else 0.05})}
    return TrackedRun(id="0123456789ab", step=step, job=Job.detect(environ))


def stop_and_resume(first: Tracker, second: Tracker, tmp_path: Path) -> None:
    first.start(run_at(0, tmp_path))
    first.log(10, {"epoch": 0, "loss": 1.0})
    first.checkpoint(10, "/here/step-10")
    first.log(20, {"epoch": 0, "loss": 2.0})
    first.finish("stopped", None)
    second.start(run_at(10, tmp_path))
    second.log(20, {"epoch": 1, "loss": math.nan})
    second.log(30, {"epoch": 1, "loss": 3.0})
    second.finish("finished", "/the/model")


@pytest.mark.trackers
def test_tensorboard_shows_one_run_without_the_steps_that_came_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing import event_accumulator as accumulator

    stop_and_resume(TensorBoard(), TensorBoard(), tmp_path)
    shown = accumulator.EventAccumulator(str(tmp_path / "run" / "output" / "tensorboard")).Reload()
    steps, losses = zip(*((point.step, point.value) for point in shown.Scalars("loss")), strict=True)
    assert steps == (10, 20, 30)
    assert losses[0] == 1.0
    assert math.isnan(losses[1])
    assert losses[2] == 3.0
    texts = {tag: shown.Tensors(tag)[-1].tensor_proto.string_val[0].decode() for tag in shown.Tags()["tensors"]}
    assert '"lr": 0.05' in texts["hyperparameters/text_summary"]
    assert texts["checkpoint/text_summary"] == "/here/step-10"
    assert texts["end/text_summary"] == "finished; model: /the/model"


@pytest.mark.trackers
@pytest.mark.slow
def test_mlflow_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "mlruns").as_uri()
    stop_and_resume(MLflow("digits", uri), MLflow("digits", uri), tmp_path)
    client = mlflow.MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params == {"lr": "0.1"}
    tags = {name: value for name, value in run.data.tags.items() if name.startswith("smddp.")}
    assert tags == {
        "smddp.run": "0123456789ab",
        "smddp.checkpoint": "step 10: /here/step-10",
        "smddp.changed.lr": "0.05",
        "smddp.model": "/the/model",
    }
    assert [point.step for point in client.get_metric_history(run.info.run_id, "loss")] == [10, 20, 20, 30]


@pytest.mark.trackers
@pytest.mark.slow
def test_wandb_writes_offline_runs_of_one_id(tmp_path: Path) -> None:
    stop_and_resume(WandB("digits", "offline"), WandB("digits", "offline"), tmp_path)
    directories = sorted((tmp_path / "run" / "output" / "wandb").glob("offline-run-*"))
    assert len(directories) == 2
    assert all("-0123456789ab" in directory.name for directory in directories)
    for directory, last_step, status in zip(directories, (20, 30), ("stopped", "finished"), strict=True):
        records = read_records(next(directory.glob("*.wandb")))
        (run,) = [record.run for record in records if record.HasField("run")]
        assert (run.project, run.run_id) == ("digits", "0123456789ab")
        summary = {item.key: item.value_json for record in records for item in record.summary.update}
        assert summary["status"] == f'"{status}"'
        steps = [item.value_json for record in records for item in record.history.item if item.nested_key == ["step"]]
        assert steps[-1] == str(last_step)


def read_records(path: Path) -> list[Any]:
    """The records of a run's file: blocks of 32 KiB, whose chunks have a checksum, a length and a kind before them."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, records, begun = path.read_bytes(), 7, [], b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # too little for a chunk: it is filled up
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        begun += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last chunk of one
            records.append(Record.FromString(begun))
            begun = b""
    return records


@pytest.mark.parametrize("kind", [TensorBoard, MLflow, WandB])
def test_a_package_that_is_missing_is_told_before_training(
    kind: type[Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smddp.metrics.tracking, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"which is not installed: pip install 'smddp\[trackers\]'"):
        kind()
