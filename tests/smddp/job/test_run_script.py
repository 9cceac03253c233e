from __future__ import annotations

import errno
import fcntl
import logging
import shutil
from pathlib import Path

import pytest

from smddp.errors import JobError
from smddp.job import Job, run_script
from smddp.job.run_script import lock_run_directory
from smddp.launch.local import run_local


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("first", "second"):
        (tmp_path / "project" / name).mkdir(parents=True)
        (tmp_path / "project" / name / "train.py").write_text("print('trained')\n")
    monkeypatch.delenv("SMDDP_RUN_DIR", raising=False)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def begin(script: str, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str] | None = None) -> Job:
    monkeypatch.setattr("sys.argv", [script])
    job = Job.detect(environ or {})
    job.make_directories()
    return job


def save(job: Job) -> None:
    (job.checkpoint_dir / "step-000000000008").mkdir()


def test_a_default_run_directory_with_a_checkpoint_refuses_another_script_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save(begin("first/train.py", monkeypatch))
    with pytest.raises(JobError, match=r"first/train.py ran there, and this is second/train.py.*runs/second-train"):
        begin("second/train.py", monkeypatch)
    with pytest.raises(JobError, match=r"first/train.py ran there, and this is second/train.py"):
        run_local("second/train.py")
    begin("first/train.py", monkeypatch)


def test_a_run_directory_that_is_given_takes_any_script(monkeypatch: pytest.MonkeyPatch) -> None:
    save(begin("first/train.py", monkeypatch))
    begin("second/train.py", monkeypatch, {"SMDDP_RUN_DIR": "runs/train"})
    begin("first/train.py", monkeypatch)


def test_a_script_and_its_module_have_one_run_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(begin("first/train.py", monkeypatch))
    begin(str(project / "first" / "train.py"), monkeypatch)


def test_a_project_that_moves_keeps_its_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(begin("first/train.py", monkeypatch))
    moved = shutil.move(project, project.with_name("moved"))
    monkeypatch.chdir(moved)
    begin("first/train.py", monkeypatch)


def test_a_directory_without_checkpoint_and_model_goes_to_the_next_script(monkeypatch: pytest.MonkeyPatch) -> None:
    begin("first/train.py", monkeypatch)
    save(begin("second/train.py", monkeypatch))
    with pytest.raises(JobError, match=r"second/train.py ran there, and this is first/train.py"):
        begin("first/train.py", monkeypatch)


def test_one_run_at_a_time_trains_in_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(run_script, "_PATIENCE_SECONDS", 0.2)
    with lock_run_directory(tmp_path / "run"):
        with pytest.raises(JobError, match=r"Another run trains in .*/run: wait until it ends, or give .* --run-dir"):
            run_local("first/train.py", run_dir=tmp_path / "run")
        with lock_run_directory(tmp_path / "other"):
            pass
    assert [each for each in caplog.messages if "waiting up to" in each] == [
        f"another run trains in {tmp_path / 'run'}; waiting up to 0 s for its end"
    ]
    with lock_run_directory(tmp_path / "run"):
        assert not (tmp_path / "run" / "output" / "failure").exists()


def test_a_run_directory_whose_file_system_has_no_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with lock_run_directory(tmp_path), lock_run_directory(tmp_path):
        pass


def test_a_file_where_the_run_directory_should_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with (
        pytest.raises(JobError, match=r"can't be written: File exists.* --run-dir"),
        lock_run_directory(tmp_path / "run"),
    ):
        pass
