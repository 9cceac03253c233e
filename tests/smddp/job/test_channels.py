"""What a job says about its channels: directories, pipes, and who has which part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smddp.errors import JobError
from smddp.job import Job
from smddp.job.channels import Input

ON_SAGEMAKER = {"SM_CURRENT_HOST": "algo-1", "SM_HOSTS": '["algo-1"]'}


def job(base: Path, configuration: dict[str, Any], **environ: str) -> Job:
    config = base / "input" / "config"
    config.mkdir(parents=True)
    (config / "inputdataconfig.json").write_text(json.dumps(configuration))
    return Job.detect({"SAGEMAKER_BASE_DIR": str(base), **environ})


@pytest.fixture
def both(tmp_path: Path) -> Job:
    entry = {"S3DistributionType": "ShardedByS3Key", "RecordWrapperType": "RecordIO"}
    configuration = {"stream": {"TrainingInputMode": "Pipe", **entry}, "files": {"TrainingInputMode": "File"}}
    return job(tmp_path, configuration, SM_CHANNEL_STREAM=str(tmp_path / "input/data/stream"))


def test_each_channel_says_how_it_comes(both: Job, tmp_path: Path) -> None:
    data = tmp_path / "input" / "data"
    assert both.inputs == {
        "stream": Input(name="stream", mode="Pipe", sharded_by_host=True, recordio=True, path=data / "stream"),
        "files": Input(name="files", path=data / "files"),
    }
    assert both.inputs["stream"].pipe(3) == data / "stream_3"


def test_a_pipe_is_no_directory_and_the_error_says_how_to_read_it(both: Job) -> None:
    assert list(both.channels) == ["files"]
    with pytest.raises(JobError, match=r"'stream' is in Pipe mode.*PipeDataset\(job\.inputs\['stream'\]\)"):
        both.channels["stream"]


def test_a_directory_is_no_pipe_and_the_error_says_what_it_is(both: Job) -> None:
    with pytest.raises(JobError, match=r"'files' is a directory, .*/files.*input_mode=\"Pipe\""):
        both.inputs["files"].pipe(0)


def test_a_channel_that_is_not_there_is_missed_among_both_kinds(both: Job) -> None:
    for missed in (both.inputs, both.channels):
        with pytest.raises(JobError, match=r"no channel 'train'; this job has: files, stream"):
            missed["train"]


def test_what_sdk_v3_brings_the_code_in_is_no_input(tmp_path: Path) -> None:
    variables = {f"SM_CHANNEL_{name.upper()}": f"/opt/ml/input/data/{name}" for name in ("code", "data", "sm_drivers")}
    v3 = job(tmp_path / "v3", {"code": {}, "data": {}, "sm_drivers": {}}, **variables)
    another = job(tmp_path / "another", {"code": {}, "data": {}})
    assert (list(v3.inputs), list(another.inputs)) == (["data"], ["code", "data"])


def test_fastfile_is_a_directory(tmp_path: Path) -> None:
    assert job(tmp_path, {"a": {"TrainingInputMode": "FastFile"}}).inputs["a"].mode == "File"


def test_the_toolkits_variable_speaks_where_there_is_no_file(tmp_path: Path) -> None:
    environ = {"SM_INPUT_DATA_CONFIG": json.dumps({"train": {"TrainingInputMode": "Pipe"}})}
    detected = Job.detect({"SAGEMAKER_BASE_DIR": str(tmp_path)} | ON_SAGEMAKER | environ)
    assert detected.inputs["train"].mode == "Pipe"


@pytest.mark.parametrize("entry", [{"TrainingInputMode": "Stream"}, {"TrainingInputMode": None}, "File", []])
def test_a_channel_that_makes_no_sense_is_shown(entry: Any, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"'train' is configured as .*expected an object"):
        job(tmp_path, {"train": entry})


def test_outside_of_a_job_a_variable_is_a_directory(tmp_path: Path) -> None:
    detected = Job.detect({"SAGEMAKER_BASE_DIR": str(tmp_path), "SM_CHANNEL_TRAIN": "/data"})
    assert detected.inputs["train"] == Input(name="train", path=Path("/data"))
