from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from smddp.cluster import Cluster
from smddp.errors import ClusterError, JobError
from smddp.job import Job, with_run_variables

TWO_HOSTS = {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}


def write_config(base: Path, **files: Any) -> None:
    config = base / "input" / "config"
    config.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (config / f"{name}.json").write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.fixture
def ml(tmp_path: Path) -> Path:
    base = tmp_path / "opt" / "ml"
    write_config(
        base,
        hyperparameters={"lr": "0.1", "name": '"1e3"', "raw": "abc", "sagemaker_program": '"train.py"'},
        inputdataconfig={"training": {}, "Test-Set": {}},
        checkpointconfig={"S3Uri": "s3://bucket/run", "LocalPath": str(tmp_path / "elsewhere")},
    )
    return base


def test_a_job_of_sagemaker_is_read_from_its_files(ml: Path, tmp_path: Path) -> None:
    job = Job.detect({"SAGEMAKER_BASE_DIR": str(ml), "TRAINING_JOB_NAME": "digits-1"} | TWO_HOSTS)
    assert (job.name, job.on_sagemaker, job.cluster.rank) == ("digits-1", True, 1)
    assert job.hyperparameters == {"lr": 0.1, "name": "1e3", "raw": "abc"}
    assert job.channels == {"training": ml / "input/data/training", "Test-Set": ml / "input/data/Test-Set"}
    assert (job.input_dir, job.code_dir, job.model_dir) == (ml / "input", ml / "code", ml / "model")
    assert (job.output_dir, job.output_data_dir) == (ml / "output", ml / "output" / "data")
    assert (job.checkpoint_dir, job.checkpoint_s3_uri) == (tmp_path / "elsewhere", "s3://bucket/run")
    assert (job.checkpoint_location, job.checkpoints_are_copied) == (str(tmp_path / "elsewhere"), True)


def test_the_toolkits_variables_win(ml: Path) -> None:
    environ = {
        "SAGEMAKER_BASE_DIR": str(ml),
        "SM_INPUT_DIR": str(ml / "input"),
        "SM_MODEL_DIR": "/else/model",
        "SM_OUTPUT_DIR": "/else/output",
        "SM_OUTPUT_DATA_DIR": "/else/data",
        "SM_SOURCE_DIR": "/opt/ml/input/data/code",
        "SM_MODULE_DIR": "s3://bucket/sourcedir.tar.gz",
        "SM_CHANNEL_TRAINING": "/else/training",
        "SM_CHANNEL_TEST-SET": "/else/test",
        "SAGEMAKER_JOB_NAME": "digits-2",
    }
    job = Job.detect(environ)
    assert job.name == "digits-2"
    assert (job.model_dir, job.output_dir) == (Path("/else/model"), Path("/else/output"))
    assert (job.output_data_dir, job.code_dir) == (Path("/else/data"), Path("/opt/ml/input/data/code"))
    assert job.channels == {"training": Path("/else/training"), "Test-Set": Path("/else/test")}


def test_a_job_without_checkpoints_has_a_directory_that_goes_nowhere(tmp_path: Path) -> None:
    write_config(tmp_path)
    job = Job.detect({"SAGEMAKER_BASE_DIR": str(tmp_path)})
    assert (job.checkpoint_dir, job.checkpoint_s3_uri) == (tmp_path / "checkpoints", None)
    assert (job.checkpoint_location, job.checkpoints_are_copied) == (str(tmp_path / "checkpoints"), False)
    assert (job.channels, job.hyperparameters) == ({}, {})


@pytest.mark.parametrize("where", ["on SageMaker", "elsewhere"])
def test_checkpoints_go_to_s3_directly_where_the_variable_says_so(where: str, ml: Path, tmp_path: Path) -> None:
    base = {"SAGEMAKER_BASE_DIR": str(ml if where == "on SageMaker" else tmp_path), "SMDDP_RUN_DIR": str(tmp_path)}
    job = Job.detect(base | {"SMDDP_CHECKPOINT_S3_URI": "s3://bucket/mine"})
    assert job.on_sagemaker is (where == "on SageMaker")
    assert job.checkpoint_location == job.checkpoint_s3_uri == "s3://bucket/mine"
    assert not job.checkpoints_are_copied


@pytest.mark.parametrize("uri", ["bucket/run", "s3://", "s3:///run", "https://bucket/run", "s3://bucket/a run"])
def test_checkpoints_go_to_no_place_that_is_not_in_s3(uri: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"SMDDP_CHECKPOINT_S3_URI=.* is no place in S3: expected s3://bucket/prefix"):
        Job.detect({"SMDDP_RUN_DIR": str(tmp_path), "SMDDP_CHECKPOINT_S3_URI": uri})


def test_true_names_come_from_sm_channels_where_there_is_no_file(tmp_path: Path) -> None:
    environ = {"SM_CHANNELS": '["Train"]', "SM_CHANNEL_TRAIN": "/a", "SM_CHANNEL_EXTRA": "/b"}
    job = Job.detect({"SAGEMAKER_BASE_DIR": str(tmp_path)} | TWO_HOSTS | environ)
    assert job.channels == {"Train": Path("/a"), "extra": Path("/b")}


def test_channels_that_differ_only_in_case_keep_apart(tmp_path: Path) -> None:
    write_config(tmp_path, inputdataconfig={"train": {}, "TRAIN": {}})
    job = Job.detect({"SAGEMAKER_BASE_DIR": str(tmp_path), "SM_CHANNEL_TRAIN": "/one/of/them"})
    assert job.channels == {name: tmp_path / "input" / "data" / name for name in ("train", "TRAIN")}


def test_a_missing_channel_is_an_error_that_lists_those_there_are(ml: Path) -> None:
    channels = Job.detect({"SAGEMAKER_BASE_DIR": str(ml)}).channels
    with pytest.raises(JobError, match=r"no channel 'train'; this job has: Test-Set, training\..*SM_CHANNEL_TRAIN "):
        channels["train"]
    assert "train" not in channels
    assert channels.get("train") is None


def test_outside_of_sagemaker_a_run_directory_holds_the_same_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["scripts/train.py", "--lr", "1"])
    environ = {"SAGEMAKER_BASE_DIR": str(tmp_path / "none"), "SM_CHANNEL_TRAINING": "/data", "SM_HPS": '{"a": "1"}'}
    job = Job.detect(environ)
    run = tmp_path / "runs" / "train"
    assert (job.name, job.on_sagemaker, job.cluster.launcher) == ("train", False, "single")
    assert (job.model_dir, job.output_data_dir) == (run / "model", run / "output" / "data")
    assert (job.checkpoint_dir, job.code_dir) == (run / "checkpoints", tmp_path / "scripts")
    assert (job.channels, job.hyperparameters) == ({"training": Path("/data")}, {"a": "1"})
    assert "the run's directory is runs/train (--run-dir or SMDDP_RUN_DIR moves it)" in caplog.messages
    assert not run.exists()
    assert Job.detect(environ) == job  # the same command finds its checkpoints again


@pytest.mark.parametrize("program", ["jobs/__main__.py", "__main__.py"])
def test_a_package_that_is_run_gives_the_run_directory_its_name(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    monkeypatch.chdir(tmp_path if "/" in program else tmp_path / "jobs")
    monkeypatch.setattr("sys.argv", [program])
    assert Job.detect({"SAGEMAKER_BASE_DIR": "/none"}).name == "jobs"


@pytest.mark.parametrize("program", ["", "-c"])
def test_an_interactive_session_has_a_run_directory_too(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [program])
    assert Job.detect({"SAGEMAKER_BASE_DIR": "/none"}).name == "interactive"


def test_the_run_directory_can_be_moved_and_made(tmp_path: Path) -> None:
    job = Job.detect({"SAGEMAKER_BASE_DIR": "/none", "SMDDP_RUN_DIR": str(tmp_path / "deep" / "first")})
    job.make_directories()
    job.make_directories()
    assert job.name == "first"
    made = {str(path.relative_to(tmp_path / "deep" / "first")) for path in (tmp_path / "deep").rglob("*/*")}
    assert made == {"model", "output", "output/data", "checkpoints"}


@pytest.mark.parametrize("below", ["", "run-7"])
def test_a_file_in_the_place_of_the_run_directory_is_named(below: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(JobError, match=r"train\.py is a file\. .*SMDDP_RUN_DIR sets it: give a directory"):
        Job.detect({"SAGEMAKER_BASE_DIR": "/none", "SMDDP_RUN_DIR": str(tmp_path / "train.py" / below)})


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "model").touch()
    job = Job.detect({"SAGEMAKER_BASE_DIR": "/none", "SMDDP_RUN_DIR": str(tmp_path)})
    with pytest.raises(JobError, match=r"/model.* can't be made: .*SMDDP_RUN_DIR"):
        job.make_directories()


def test_a_cluster_that_is_known_is_not_detected_again() -> None:
    broken = {"SAGEMAKER_BASE_DIR": "/none", "RANK": "1"}
    cluster = Cluster.detect({})
    assert Job.detect(broken, cluster=cluster).cluster is cluster
    with pytest.raises(ClusterError):
        Job.detect(broken)


@pytest.mark.parametrize("name", ["hyperparameters", "inputdataconfig", "checkpointconfig"])
@pytest.mark.parametrize(("text", "message"), [("{", "is not JSON"), ("[]", "must hold a JSON object, not list")])
def test_a_damaged_file_is_named(name: str, text: str, message: str, tmp_path: Path) -> None:
    write_config(tmp_path, **{name: text})
    with pytest.raises(JobError, match=rf"{name}\.json {message}"):
        Job.detect({"SAGEMAKER_BASE_DIR": str(tmp_path)})


@pytest.mark.parametrize(("variable", "text"), [("SM_CHANNELS", "training"), ("SM_CHANNELS", "{}"), ("SM_HPS", "[")])
def test_a_damaged_variable_is_named(variable: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(JobError, match=variable):
        Job.detect({"SAGEMAKER_BASE_DIR": str(tmp_path), variable: text} | TWO_HOSTS)


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "many", "٣"])
def test_a_number_of_steps_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    given = {"SMDDP_RUN_DIR": str(tmp_path)}
    assert Job.detect(given).max_steps is None
    assert Job.detect(given | {"SMDDP_MAX_STEPS": "20"}).max_steps == 20
    with pytest.raises(JobError, match=f"SMDDP_MAX_STEPS={text} is no number of steps"):
        Job.detect(given | {"SMDDP_MAX_STEPS": text})


@pytest.mark.parametrize("text", ['{"hybrid_shard_degree": 2}', json.dumps('{"hybrid_shard_degree": 2}')])
def test_the_parameters_of_modelparallel_come_from_the_file_or_a_variable(tmp_path: Path, text: str) -> None:
    run = {"SAGEMAKER_BASE_DIR": "/none", "SMDDP_RUN_DIR": str(tmp_path)}
    assert Job.detect(run).mp_parameters is None
    for variables in {"SM_HP_MP_PARAMETERS": text}, {"SM_HPS": json.dumps({"mp_parameters": json.loads(text), "a": 1})}:
        job = Job.detect(run | variables)
        assert job.mp_parameters == {"hybrid_shard_degree": 2}
        assert job.hyperparameters == ({"a": 1} if "SM_HPS" in variables else {})
    write_config(tmp_path, hyperparameters={"mp_parameters": text})
    assert Job.detect(run | {"SM_HP_MP_PARAMETERS": "{}"}).mp_parameters == {"hybrid_shard_degree": 2}


def test_smddp_run_gives_a_script_the_parameters_of_modelparallel_as_the_toolkit_does(tmp_path: Path) -> None:
    write_config(tmp_path, hyperparameters={"lr": "0.1", "mp_parameters": '{"hybrid_shard_degree": 2}'})
    environ = with_run_variables({"SAGEMAKER_BASE_DIR": "/none"}, tmp_path, hosts=["here"], host="here", gpus=0)
    assert json.loads(environ["SM_HP_MP_PARAMETERS"]) == {"hybrid_shard_degree": 2}
    assert json.loads(environ["SM_HPS"]) == {"lr": 0.1, "mp_parameters": {"hybrid_shard_degree": 2}}
    assert Job.detect(environ | {"SMDDP_RUN_DIR": str(tmp_path)}).mp_parameters == {"hybrid_shard_degree": 2}


@pytest.mark.parametrize("text", ["[2]", "2", "hybrid", '{"a"'])
def test_parameters_of_modelparallel_that_are_no_object_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(JobError, match=r"mp_parameters (is not JSON|must hold a JSON object)"):
        Job.detect({"SAGEMAKER_BASE_DIR": str(tmp_path), "SM_HP_MP_PARAMETERS": text} | TWO_HOSTS)
