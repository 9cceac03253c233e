"""`Estimator.rehearse`: a job that would train for days is tried on this machine, in seconds."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sagemaker.inputs import TrainingInput

from estimators import Estimator
from estimators.errors import EstimatorError, TrainingJobFailed
from estimators.local import LocalSageMaker
from estimators.rehearsal import sample
from estimators.rehearsal.rehearsal import _RESUMED, _newest
from smddp.container.virtual_environment import make_environment
from smddp.display_text import as_size
from tests.end_to_end.conftest import SCRIPTS

Build = Callable[..., Estimator]


@pytest.fixture
def data(platform: LocalSageMaker) -> str:
    """Twelve objects of one byte."""
    s3 = platform.boto_session.client("s3")
    for number in range(12):
        s3.put_object(Bucket=platform.default_bucket, Key=f"numbers/{number % 2}/{number:02}", Body=b"1")
    return f"s3://{platform.default_bucket}/numbers"


@pytest.mark.slow
def test_a_job_of_two_hosts_trains_saves_and_resumes(
    estimator: Build, platform: LocalSageMaker, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("estimators.rehearsal.sample.SAMPLE_BYTES", 4)
    job = estimator(
        "reads_channel.py",
        instance_count=2,
        distribution="torchrun",
        use_spot_instances=True,
        max_run=3600,
        max_wait=7200,
        output_path="s3://somebody-elses/output",
        disable_output_compression=True,
        checkpoint_s3_uri="s3://somebody-elses/checkpoints",
        environment={"SHARED": "yes"},
    )
    found = job.rehearse({"training": data}, steps=6, seconds=100, logs=False)
    assert (found.steps, found.resumed_at) == (12, 6)
    assert found.metrics["files"] == 4
    assert found.metrics["samples_per_second"] > 0
    assert "goodput" not in found.metrics
    assert 0 < found.checkpoint_bytes < 1e6
    assert 0 < found.model_bytes < 1e6
    sizes = f"({as_size(found.checkpoint_bytes)}); model.tar.gz {as_size(found.model_bytes)}; largest process "
    assert sizes in str(found)
    assert 64 << 20 < found.memory_bytes < 64 << 30
    assert 0 < (found.least_gpu_bytes or 0) < 1000  # its model has a few bytes
    assert (
        f"; rank 0 needs at least {found.least_gpu_bytes} B of GPU memory plus activations (a GPU of ml.g5.xlarge has "
        "22.4 GiB); " in str(found)
    )
    assert found.topology == "2 × ml.g5.xlarge, torchrun"
    assert "12 steps in" in str(found)
    assert str(found).endswith("; sample of channel training: 4 of 12 objects, 4 B")
    assert "resumed from the checkpoint of step 6" in str(found)
    listed = platform.boto_session.client("sagemaker").list_training_jobs(NameContains="reads-channel")
    assert listed["TrainingJobSummaries"] == []  # nothing of it was sent where the job would go


@pytest.mark.parametrize(
    ("sizes", "distribution", "taken"),
    [
        ([6, *[1] * 12], "FullyReplicated", [0, 9, 11]),  # in proportion to their bytes
        ([1, 9, 1, 9], "FullyReplicated", [0, 2]),
        ([8, *[4] * 5], "ShardedByS3Key", [1, 2, 3]),  # one for each host, the smallest
        ([0, 0, 4, 5, 6], "ShardedByS3Key", [2, 3, 4]),
    ],
)
def test_a_sample_is_taken_by_bytes_and_for_each_host(
    platform: LocalSageMaker,
    sizes: list[int],
    distribution: str,
    taken: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("estimators.rehearsal.sample.SAMPLE_BYTES", 8)
    s3, bucket, prefix = platform.boto_session.client("s3"), platform.default_bucket, secrets.token_hex(4)
    for number, size in enumerate(sizes):
        s3.put_object(Bucket=bucket, Key=f"{prefix}/{number:02}", Body=b"0" * size)
    place = TrainingInput(f"s3://{bucket}/{prefix}", distribution=distribution)
    moved, said = sample.bring(prefix, place, platform, lambda: s3, hosts=3)
    there = [int(key[-2:]) for key, _ in sample.objects(s3, bucket, f"rehearsal/data/{prefix}/")]
    assert there == taken
    assert moved.config["DataSource"]["S3DataSource"]["S3Uri"] == f"s3://{bucket}/rehearsal/data/{prefix}"
    assert f"{prefix}: {len(taken)} of {len(sizes)} objects" in said
    assert said.endswith("none of the 2 that have more than 0 MiB") == (9 in sizes) == (said in caplog.text)


def test_a_marker_is_no_sample(platform: LocalSageMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("estimators.rehearsal.sample.SAMPLE_BYTES", 8)
    s3, bucket = platform.boto_session.client("s3"), platform.default_bucket
    for key, body in {"_SUCCESS": b"ok", "empty": b"", "part-0": b"0" * 9}.items():
        s3.put_object(Bucket=bucket, Key=f"marked/{key}", Body=body)
    with pytest.raises(EstimatorError, match=r"1 of its objects have more than 0 MiB, .* 0 with data are left"):
        sample.bring("marked", f"s3://{bucket}/marked", platform, lambda: s3, hosts=1)


@pytest.mark.slow
def test_a_job_that_does_not_pass_its_rehearsal_is_not_sent(
    estimator: Build, platform: LocalSageMaker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    place = f"s3://{platform.default_bucket}/rehearsed"
    with pytest.raises(TrainingJobFailed):
        estimator("fails.py", base_job_name="unrehearsed").fit(rehearse=2, logs=False)
    listed = platform.boto_session.client("sagemaker").list_training_jobs(NameContains="unrehearsed")
    assert listed["TrainingJobSummaries"] == []
    job = estimator("trains.py", checkpoint_s3_uri=place).fit(rehearse=2, logs=False, wait=False)
    job.stop()
    assert "4 steps in" in caplog.text


@pytest.mark.slow
def test_a_job_that_is_soon_done_tells_what_it_did(estimator: Build) -> None:
    found = estimator("trains.py", checkpoint_s3_uri="s3://somebody-elses/checkpoints").rehearse(
        steps=200, seconds=100, logs=False
    )
    assert (found.steps, found.resumed_at) == (150, 150)
    assert found.metrics.keys() >= {"loss", "samples_per_second"}


@pytest.mark.slow
def test_all_of_several_models_resume_and_only_the_trainers_own_line_tells_it(estimator: Build) -> None:
    found = estimator("two_models.py", checkpoint_s3_uri="s3://somebody-elses/checkpoints").rehearse(
        steps=3, seconds=100, logs=False
    )
    assert (found.steps, found.resumed_at, found.model_bytes) == (6, 3, 0)
    assert found.checkpoint_bytes > 0
    assert "; no model saved; " in str(found)


def test_the_newest_checkpoint_is_that_of_each_model() -> None:
    saved = {"step-9/a": 1, "step-10/a": 2, "step-10/b/step-99/c": 4, "my-step-3/step-8/a": 8, "teacher/x": 16}
    assert sorted(_newest((f"rehearsal/checkpoints/{key}", size) for key, size in saved.items())) == [(8, 8), (10, 6)]


def test_a_line_of_the_script_is_no_resume() -> None:
    line = "2026-01-02 03:04:05,678 [rank 0] INFO smddp.training.save_schedule: resumed at step 6, in epoch 1"
    assert _RESUMED.match(line)
    assert _RESUMED.match("03:04:05 resumed at step 6, in epoch 1")
    assert not _RESUMED.match(line.replace("smddp.training.save_schedule", "__main__"))
    assert not _RESUMED.match("resumed at step 6, in epoch 1")


@pytest.mark.slow
def test_a_directory_will_do_and_a_job_without_checkpoints_is_tried_once(estimator: Build, tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "one").write_text("1")
    found = estimator("reads_channel.py").rehearse({"training": tmp_path}, steps=3, seconds=100, logs=False)
    assert (found.steps, found.resumed_at, found.metrics["files"]) == (3, None, 1)
    assert "no checkpoints, for the job has no checkpoint_s3_uri" in str(found)


@pytest.mark.slow
def test_a_job_that_cannot_train_says_why(estimator: Build, tmp_path: Path) -> None:
    (tmp_path / "word").write_text("one")
    with pytest.raises(TrainingJobFailed, match="could not convert string to float: 'one'") as failure:
        estimator("reads_channel.py").rehearse({"training": str(tmp_path)}, steps=3, seconds=100, logs=False)
    told = str(failure.value)
    assert told.startswith("The rehearsal of reads_channel.py (1 × ml.g5.xlarge, the script alone) failed: Algo")
    assert (
        "The local platform and its files of /opt/ml are gone: rehearse(logs=True) shows its log. To repeat it:" in told
    )
    assert "attach" not in told
    assert "CloudWatch" not in told
    assert "\nexit code: 1\nThe end of the traceback of rank 0:\nTraceback (most recent call last):\n" in told
    assert ", in main\n    samples = torch.tensor([float(" in told


@pytest.mark.slow
def test_a_script_without_smddp_run_shows_the_end_of_the_traceback_that_it_printed(estimator: Build) -> None:
    with pytest.raises(TrainingJobFailed, match="ValueError: invalid literal for int") as failure:
        estimator("fails_deep.py").rehearse(logs=False)
    reason, heading, traceback = str(failure.value).partition("\nThe end of the traceback:\n")
    assert heading
    assert "in <module>" not in reason
    assert "in <module>\n    parse(9)\n" in traceback
    assert traceback.count("return unwrap(depth - 1)") == 10


@pytest.mark.slow
def test_a_traceback_that_the_reason_has_is_not_shown_twice(estimator: Build, tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("import smddp\nraise ValueError('my own')\n")
    with pytest.raises(TrainingJobFailed, match="raise ValueError") as failure:
        estimator("short.py", source_dir=tmp_path).rehearse(logs=False)
    assert str(failure.value).count("raise ValueError") == 1


@pytest.mark.slow
def test_a_job_without_the_trainers_checkpoints_is_not_tried_twice(estimator: Build) -> None:
    with pytest.raises(EstimatorError, match=r"first attempt ended without a checkpoint .* Without checkpoint_s3_uri"):
        estimator("saves_nothing.py", checkpoint_s3_uri="s3://somebody-elses/checkpoints").rehearse(logs=False)


@pytest.mark.slow
def test_a_loop_of_ones_own_is_given_up(estimator: Build) -> None:
    with pytest.raises(
        EstimatorError,
        match=r"given up after 4 s, in which the script did not end; the start .* smddp\.Trainer end after 3 opt",
    ):
        estimator("count.py").rehearse(steps=3, seconds=4, logs=False)


@pytest.mark.parametrize(
    ("text", "given", "said"),
    [
        ("import smddp", {"steps": 0}, "steps=0: give a whole number from 1 to 499,999,999,999"),
        ("import smddp", {"steps": 10**12 // 2}, "steps=500000000000: give a whole number"),
        ("import smddp", {"seconds": 0}, "seconds=0: give a whole number from 1 to 2,419,200"),
        ("import smddp", {"seconds": 2.5}, r"seconds=2\.5: give a whole number"),
        ("import smddp", {"seconds": 28 * 24 * 3600 + 1}, "seconds=2419201: give a whole number"),
        ("print('never heard of it')", {}, "its code does not import smddp"),
        ("import smddp, no_such_module", {}, "^Nothing was sent: one thing is wrong with the job:"),
        ("import smddp", {"inputs": ["s3://bucket/data"]}, "inputs is a list: a rehearsal needs the channels by name"),
        ("import smddp", {"inputs": TrainingInput("file:///data")}, r"TrainingInput\('file:///data'\) is not on S3"),
        ("import smddp", {"inputs": "file://empty"}, r"inputs\['training'\]: there are no files in file://empty"),
        ("import smddp", {"inputs": "nowhere"}, r"inputs\['training'\]: there is no nowhere"),
        ("import smddp", {"inputs": "s3://sagemaker-us-east-1-123456789012/nothing"}, "there are no objects"),
        ("import smddp", {"inputs": "s3://nobodys-bucket/data"}, r"no sample of .* can be fetched: .*NoSuchBucket"),
        (
            "import smddp",
            {"inputs": {"big": "s3://sagemaker-us-east-1-123456789012/big"}},
            "big: 1 of its objects have more than 0 MiB",
        ),
    ],
)
@pytest.mark.slow
def test_what_cannot_be_rehearsed_is_said_at_once(
    platform: LocalSageMaker,
    text: str,
    given: dict[str, Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    platform.boto_session.client("s3").put_object(Bucket=platform.default_bucket, Key="big/shard.tar", Body=b"0" * 9)
    monkeypatch.setattr("estimators.rehearsal.sample.SAMPLE_BYTES", 8)
    job = Estimator(
        entry_point=tmp_path / "train.py",
        role=platform.role,
        instance_type="ml.g5.xlarge",
        sagemaker_session=platform.session,
    )
    with pytest.raises(EstimatorError, match=said):
        job.rehearse(**given)


def test_code_on_s3_cannot_be_rehearsed(estimator: Build) -> None:
    with pytest.raises(EstimatorError, match=r"its code \(s3://bucket/code\.tar\.gz\) is not on this machine"):
        estimator("train.py", source_dir="s3://bucket/code.tar.gz").rehearse()


@pytest.mark.slow
def test_checkpoints_that_the_job_saves_to_s3_itself_go_to_the_rehearsals_own_place(estimator: Build) -> None:
    environment = {"SMDDP_CHECKPOINT_S3_URI": "s3://somebody-elses/checkpoints"}
    found = estimator("two_models.py", environment=environment).rehearse(steps=3, seconds=100, logs=False)
    assert (found.steps, found.resumed_at) == (6, 3)


@pytest.mark.slow
@pytest.mark.timeout(300)  # a whole job
def test_an_isolated_job_runs_with_the_python_of_its_environment(
    estimator: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment has this Python's packages here: a torch that trains is too large to be installed by a test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def install(directory: Path, *_: object, **__: object) -> None:
        make_environment(directory)

    monkeypatch.setattr("estimators.rehearsal.environments.install", install)
    (tmp_path / "code").mkdir()
    text = (SCRIPTS / "trains.py").read_text()
    prefix = f"import sys\nassert sys.prefix.startswith({str(tmp_path / 'cache')!r}), sys.prefix\n"
    (tmp_path / "code" / "trains.py").write_text(prefix + text.replace("from __future__ import annotations\n", ""))
    found = estimator("trains.py", source_dir=str(tmp_path / "code"), framework_version="2.6.0").rehearse(
        steps=3, seconds=100, logs=False, isolated=True
    )
    assert found.metrics["loss"] > 0
    assert found.runtime.startswith("PyTorch 2.6, Python ")
    assert found.runtime.endswith(" of an environment of its own")
