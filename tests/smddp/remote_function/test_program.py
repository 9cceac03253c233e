"""The program of a remote function's job, without the one who sends it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from estimators.remote_function.function_code import ENTRY_POINT
from smddp.remote_function import travelling_values
from smddp.remote_function.program import ARGUMENTS, RESULT, SIGNATURE
from smddp.remote_function.sent_call import CALL_VARIABLE, SentCall, Serializer

pytestmark = pytest.mark.usefixtures("fork_python")

MODULE = """
def add(a, b):
    if a is None:
        raise SystemExit(0)
    return {"sum": a + b}
"""


def run(directory: Path, call: SentCall) -> subprocess.CompletedProcess[str]:
    (directory / "functions_of_the_job.py").write_text(MODULE)
    shutil.copy(ENTRY_POINT, directory)
    environment = {CALL_VARIABLE: call.to_text(), "SMDDP_RUN_DIR": str(directory / "run")}
    command = [sys.executable, str(directory / ENTRY_POINT.name)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def sent(directory: Path, value: object, serializer: Serializer = "safetensors") -> SentCall:
    document, _ = travelling_values.write(
        value, directory / ARGUMENTS, serializer=serializer, called="arguments", dataclasses={}
    )
    return SentCall.of("functions_of_the_job:add", serializer, document)


def test_writes_a_result_that_its_request_vouches_for(tmp_path: Path) -> None:
    call = sent(tmp_path, {"a": 1, "b": 2})
    ended = run(tmp_path, call)
    assert ended.returncode == 0, ended.stderr
    output = tmp_path / "run" / "output" / "data"
    result = travelling_values.read(
        output / RESULT,
        serializer="safetensors",
        check=lambda document: call.check_result(document, output / SIGNATURE),
        dataclasses={},
    )
    assert result == {"sum": 3}


def test_calls_nothing_with_arguments_that_were_changed(tmp_path: Path) -> None:
    call = sent(tmp_path, {"a": 1, "b": 2})
    sent(tmp_path, {"a": 1, "b": 3})
    ended = run(tmp_path, call)
    assert ended.returncode == 1
    assert "the arguments are not those that were sent" in ended.stderr
    assert not (tmp_path / "run" / "output" / "data" / RESULT.parent).exists()


def test_a_function_that_exits_has_no_result_and_fails(tmp_path: Path) -> None:
    ended = run(tmp_path, sent(tmp_path, {"a": None, "b": 2}))
    assert ended.returncode == 1
    assert "functions_of_the_job:add ended by sys.exit(), and so has no result" in ended.stderr


def test_unpickles_nothing_of_another_python(tmp_path: Path) -> None:
    call = replace(sent(tmp_path, None, "cloudpickle"), python="3.4")
    ended = run(tmp_path, call)
    assert ended.returncode == 1
    assert "was pickled by Python 3.4" in ended.stderr
