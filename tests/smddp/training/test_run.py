import importlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import process as processes
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from smddp import Job
from smddp.distributed import FirstFailure, current_membership, leave
from smddp.errors import CheckpointError, JobError
from smddp.failure import report_file
from smddp.process.heartbeat import Heartbeat
from smddp.process.preemption import Stopped, stop_signal
from smddp.training.active_runs import active_runs
from smddp.training.run import run


@dataclass
class Config:
    epochs: int = 3
    lr: float = 0.1


@pytest.fixture(autouse=True)
def _a_rank_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SMDDP_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    yield
    leave()


@pytest.fixture
def failure_file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "output" / "failure"


def code_of(main: Callable[..., None]) -> object:
    with pytest.raises(SystemExit) as ended:
        run(main)
    return ended.value.code


def test_main_gets_its_hyperparameters_and_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "7"])
    given = []

    def main(config: Config, job: Job) -> None:
        given.append((config, job.model_dir, current_membership() is not None))

    assert code_of(main) == 0
    assert given == [(Config(epochs=7), tmp_path / "run" / "model", True)]
    assert current_membership() is None


def test_the_job_knows_all_hyperparameters_defaults_included(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "7"])
    given = []

    def main(job: Job, config: Config) -> None:
        given.append(job.hyperparameters)

    assert code_of(main) == 0
    assert given == [{"epochs": 7, "lr": 0.1}]


def test_a_notebook_is_told_to_make_the_job_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/site-packages/ipykernel_launcher.py", "-f", "kernel.json"])
    with pytest.raises(JobError, match=r"smddp\.run is for scripts: .* smddp\.Job\.detect"):
        run(lambda: None)


def test_main_may_want_less() -> None:
    given: list[object] = []

    def only_job(job) -> None:  # no annotation: the name says it
        given.append(type(job))

    def only_config(config: Config) -> None:
        given.append(config)

    assert code_of(only_job) == 0
    assert code_of(only_config) == 0
    assert code_of(lambda: given.append("nothing")) == 0
    assert given == [Job, Config(), "nothing"]


def test_a_parameter_that_cannot_be_given_is_an_error_that_names_it(failure_file: Path) -> None:
    def main(model: int) -> None: ...

    assert code_of(main) == 1
    assert "TypeError: main() has a parameter 'model' of type <class 'int'>" in failure_file.read_text()


def test_a_failure_is_told_in_the_file_and_ends_with_code_1(failure_file: Path) -> None:
    def main(job: Job) -> None:
        raise ValueError("label 12 is not in 0..9")

    assert code_of(main) == 1
    assert failure_file.read_text().startswith("ValueError: label 12 is not in 0..9 (rank 0 of 1 on ")


def test_a_rank_that_failed_after_another_says_so_below_the_others_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def main(job: Job) -> None:
        raise ValueError("label 12 is not in 0..9")

    other = logging.getLogger("rank 0")
    monkeypatch.setattr(FirstFailure, "claim_log", lambda _: False)
    monkeypatch.setattr(FirstFailure, "await_readers", lambda _: other.critical("failed: ValueError: label 12"))
    assert code_of(main) == 1
    assert caplog.messages[-2:] == ["failed: ValueError: label 12", "failed, too: ValueError: label 12 is not in 0..9"]


@pytest.mark.parametrize("ending", [None, SystemExit(0), Stopped()])
def test_the_next_attempt_that_does_not_fail_removes_the_old_failure(
    ending: BaseException | None, failure_file: Path
) -> None:
    failure_file.parent.mkdir(parents=True)
    failure_file.write_text("of yesterday")

    def main() -> None:
        if ending is not None:
            raise ending

    assert code_of(main) in (0, 75)
    assert not failure_file.exists()


def test_a_rank_that_succeeds_leaves_the_failure_of_another(failure_file: Path) -> None:
    failure_file.parent.mkdir(parents=True)
    failure_file.write_text("of yesterday")

    def main(job: Job) -> None:
        report_file.record(job.output_dir, "of rank 1, just now")

    assert code_of(main) == 0
    assert failure_file.read_text() == "of rank 1, just now"


def test_wrong_hyperparameters_are_told_in_the_file(monkeypatch: pytest.MonkeyPatch, failure_file: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--epohcs", "7"])

    def main(config: Config) -> None: ...

    assert code_of(main) == 1
    assert failure_file.read_text().startswith("smddp.errors.HyperparameterError")
    assert "epochs" in failure_file.read_text()


def test_a_contradictory_cluster_is_told_in_sagemakers_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ml" / "output").mkdir(parents=True)
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path / "ml"))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    assert code_of(lambda: None) == 1
    assert (tmp_path / "ml" / "output" / "failure").read_text().startswith("smddp.errors.ClusterError")


def test_an_empty_base_directory_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "output").mkdir()  # of the user
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", "")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert code_of(lambda: None) == 1
    assert not list((tmp_path / "output").iterdir())


@pytest.mark.parametrize(("level", "fails"), [("debug", False), ("10", False), ("", False), ("loud", True)])
def test_the_log_level_is_a_number_or_a_name(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, level: str, fails: bool
) -> None:
    monkeypatch.setenv("SM_LOG_LEVEL", level)
    assert code_of(lambda: None) == fails
    assert ("SM_LOG_LEVEL=loud is no log level: expected a number such as 20" in caplog.text) is fails
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("code", "ends_with", "fails"), [(0, 0, False), (None, 0, False), (3, 3, True), ("no data", 1, True)]
)
def test_sys_exit_keeps_its_code(code: object, ends_with: int, fails: bool, failure_file: Path) -> None:
    def main() -> None:
        sys.exit(code)  # type: ignore[arg-type]

    assert code_of(main) == ends_with
    assert failure_file.exists() is fails


def test_a_thread_for_which_python_waits_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["smddp.training.rank_end"], "_THREADS_SECONDS", 0.1)
    over, pool = threading.Event(), ThreadPoolExecutor()  # Python ends a pool's threads by itself
    of_pool = threading.Thread(target=over.wait, name="process pool")
    monkeypatch.setitem(processes._threads_wakeups, of_pool, None)  # type: ignore[arg-type]

    def main() -> None:
        pool.submit(int).result()
        threading.Thread(target=over.wait, name="monitor", daemon=True).start()
        short = threading.Thread(target=over.wait, args=(0.01,), name="short")
        short.join = lambda _=None: threading.Thread.join(short, 60)  # type: ignore[method-assign]  # however late
        short.start()
        threading.Thread(target=over.wait, name="uploader").start()
        of_pool.start()

    try:
        assert code_of(main) == 0
        (line,) = [each for each in caplog.messages if "ends only after its thread" in each]
        assert "its thread uploader, which is here: " in line
    finally:
        over.set()
        pool.shutdown()


@pytest.mark.parametrize("verdict", ["", "rank 1 on algo-2 does not answer"])
def test_a_stop_that_takes_no_effect_names_the_rank_that_hangs(
    verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, slept = sys.modules["smddp.training.rank_end"], list[float]()
    monkeypatch.setattr(module.time, "sleep", slept.append)
    monkeypatch.setattr(module.os, "_exit", lambda code: None)
    monkeypatch.setattr(module.logging, "shutdown", lambda: None)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)})
    job.make_directories()
    two = replace(job.cluster, world_size=2, local_world_size=2)
    module.end_late(job, two, None, steps=lambda: 3, verdict=lambda: verdict)
    told = (job.output_dir / "failure").read_text()
    assert ("since: rank 1 on algo-2 does not answer. So what it did" if verdict else "since: what it did") in told
    assert bool(slept) is not bool(verdict)  # a rank with a verdict writes the reason first


def test_a_rank_that_can_not_tell_how_it_ends_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module, codes = sys.modules["smddp.training.rank_end"], list[int]()
    monkeypatch.setattr(module.os, "_exit", codes.append)
    monkeypatch.setattr(module.stack_frames, "thread_traceback", lambda: 1 / 0)
    job = Job.detect({"SMDDP_RUN_DIR": str(tmp_path)})
    module.end_late(job, job.cluster, None, steps=lambda: 3, verdict=lambda: "")
    module.give_up(job, 0, "Hang (dead process): rank 1 has ended", is_logged=False)
    assert codes == [1, 1]
    assert caplog.text.count("ZeroDivisionError") == 2


class Save:
    """What a trainer began to save; it notes how it was ended."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.ended_with: list[type[BaseException] | None] = []
        self._failure = failure

    def begin(self) -> None:
        saving = ExitStack()
        saving.push(self._end)
        assert active_runs.end_with_script(saving)

    def _end(self, kind: type[BaseException] | None, *_: object) -> None:
        self.ended_with.append(kind)
        if self._failure is not None:
            raise self._failure


@pytest.mark.parametrize(("ending", "code"), [(None, 0), (SystemExit(0), 0), (Stopped(), 75)])
def test_a_good_end_waits_for_what_is_being_saved(ending: BaseException | None, code: int) -> None:
    save = Save()

    def main() -> None:
        save.begin()
        if ending is not None:
            raise ending

    assert code_of(main) == code
    assert save.ended_with == [None]


def test_it_is_no_good_end_if_the_last_checkpoint_fails(failure_file: Path) -> None:
    save = Save(CheckpointError("the disk is full"))
    assert code_of(save.begin) == 1
    assert save.ended_with == [None]
    assert failure_file.read_text().startswith("smddp.errors.CheckpointError: the disk is full")


def test_a_failure_ends_what_is_being_saved_and_is_the_one_reported(failure_file: Path) -> None:
    save = Save()

    def main() -> None:
        save.begin()
        raise ValueError("label 12")

    assert code_of(main) == 1
    assert save.ended_with == [ValueError]
    assert failure_file.read_text().startswith("ValueError: label 12")


@pytest.mark.parametrize("saves", [False, True])
def test_a_job_that_leaves_no_model_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, saves: bool
) -> None:
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
    monkeypatch.setenv("SM_HOSTS", '["algo-1"]')
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))

    def main(job: Job) -> None:
        (job.model_dir / "model.pt").write_text("weights") if saves else None

    assert code_of(main) == 0
    assert (f"rank 0 leaves no model: {tmp_path / 'model'} is empty" in caplog.text) is not saves


def test_ctrl_c_is_no_failure_and_is_told(failure_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        raise KeyboardInterrupt

    assert code_of(main) == 130
    assert not failure_file.exists()
    assert "interrupted, exit code 130: nothing was saved; run it again and it starts from the beginning" in caplog.text


@pytest.mark.parametrize("ending", [SystemExit(0), Stopped(), ValueError()])
def test_a_good_end_is_told_where_a_container_s_first_process_asks_for_it(
    ending: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "endings").mkdir()
    monkeypatch.setenv("SMDDP_ENDINGS", str(tmp_path / "endings"))

    def main() -> None:
        raise ending

    code = code_of(main)
    words = [word.read_text() for word in (tmp_path / "endings").iterdir()]
    assert words == ([] if code == 1 else [str(code)])


def test_a_stop_before_the_ranks_have_joined_is_told_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "endings").mkdir()
    monkeypatch.setenv("SMDDP_ENDINGS", str(tmp_path / "endings"))

    def join(_cluster: object) -> None:
        raise Stopped

    monkeypatch.setattr(importlib.import_module("smddp.training.run"), "join", join)
    assert code_of(lambda: None) == 75
    assert [word.read_text() for word in (tmp_path / "endings").iterdir()] == ["75"]


def test_a_word_that_can_t_be_left_spoils_no_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SMDDP_ENDINGS", "/proc")  # a directory in which nobody can make a file
    assert code_of(lambda: None) == 0
    assert "how this rank ended could not be told" in caplog.text


def test_a_stop_ends_with_75_and_a_late_sigterm_does_not_change_that(failure_file: Path) -> None:
    def main() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop_signal.requested
        raise Stopped

    assert code_of(main) == 75
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    assert not failure_file.exists()


def test_a_script_that_prepares_for_long_is_not_silent(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(importlib.import_module("smddp.training.run"), "Heartbeat", partial(Heartbeat, every=0.02))

    def main() -> None:
        deadline = time.monotonic() + 30
        while "no step yet: 0 s so far" not in caplog.messages:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    assert code_of(main) == 0


def test_a_stop_says_where_the_next_run_starts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def main(job: Job, saves: bool) -> None:
        if saves:
            (job.checkpoint_dir / "mine.pt").touch()
        raise Stopped

    assert code_of(lambda job: main(job, saves=False)) == 75
    assert "starts from the beginning, unless the script saved outside of" in caplog.messages[-1]
    assert "resumes" not in caplog.messages[-1]
    assert code_of(lambda job: main(job, saves=True)) == 75
    assert caplog.messages[-1] == "stopped on request, exit code 75: run it again and it resumes"


def test_an_unwritable_output_directory_does_not_hide_the_failure(
    failure_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def main() -> None:
        shutil.rmtree(failure_file.parent)
        failure_file.parent.write_text("a file where the directory was")
        raise ValueError("label 12")

    assert code_of(main) == 1
    assert "label 12" in caplog.text
    assert caplog.text.count("could not be written") == 1


def test_on_sagemaker_hyperparameters_come_from_their_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    base = tmp_path / "ml"
    (base / "input" / "config").mkdir(parents=True)
    (base / "input" / "config" / "hyperparameters.json").write_text(json.dumps({"epochs": "9", "lr": "0.5"}))
    monkeypatch.delenv("SMDDP_RUN_DIR")
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(base))
    monkeypatch.setattr(sys, "argv", ["train.py", "--epochs", "1"])  # SageMaker's lossy command line
    given = []

    def main(config: Config) -> None:
        given.append(config)

    assert code_of(main) == 0
    assert given == [Config(epochs=9, lr=0.5)]
