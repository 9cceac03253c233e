import logging
from pathlib import Path

import pytest

from smddp.errors import CheckpointError
from smddp.training.rank_end import FailureLog


def failed() -> ValueError:
    try:
        raise ValueError("label 41\nof 10")
    except ValueError as error:
        return error


def test_the_log_has_the_report_and_a_file_the_whole_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = FailureLog(failed(), tmp_path / "data", rank=3)
    log.tell("ValueError: label 41")
    log.mention()
    file = tmp_path / "data" / "traceback-rank-3.txt"
    assert caplog.messages == [
        f"failed: ValueError: label 41\nThe whole traceback is in {file}",
        "failed, too: ValueError: label 41",
    ]
    assert not any(record.exc_info for record in caplog.records)
    assert 'in failed\n    raise ValueError("label 41' in file.read_text()


def test_a_rank_that_lost_contact_is_mentioned_without_the_librarys_words(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    FailureLog(RuntimeError("[pair.cc:561] Connection closed by peer"), tmp_path / "data", rank=3).mention()
    assert caplog.messages == ["ended, too: this rank lost contact with another rank"]


def test_an_error_of_smddp_itself_needs_no_traceback(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").touch()
    FailureLog(CheckpointError("no space"), tmp_path / "data", rank=0).tell("CheckpointError: no space")
    (told,) = caplog.records
    assert (told.getMessage(), told.exc_info) == ("failed: CheckpointError: no space", None)


def test_a_traceback_without_a_file_is_logged_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "data").touch()
    FailureLog(failed(), tmp_path / "data", rank=0).tell("ValueError: label 41")
    (reason, told) = caplog.records
    assert "can't be written" in reason.getMessage()
    assert told.levelno == logging.CRITICAL
    assert told.exc_info is not None
