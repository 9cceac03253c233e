"""The program of a remote function's job, without the one who sends it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import pytest

from estimators.remote_function.function_code import ENTRY_POINT
from smddp.errors import RemoteFunctionError
from smddp.job import Job
from smddp.remote_function import travelling_values
from smddp.remote_function.program import ARGUMENTS, RESULT, SIGNATURE, CalledFunction, find_function
from smddp.remote_function.sent_call import CALL_VARIABLE, SentCall, Serializer

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = pytest.mark.usefixtures("fork_python")

MODULE = """
def add(a, b):
    if a is None:
        raise SystemExit(0)
    return {"sum": a + b}
"""

T = TypeVar("T")


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


@dataclass
class Inner:
    value: int


@dataclass
class Outer(Generic[T]):
    inner: list[Inner | None]


def function(
    first: int, /, *more: Literal["a"], here: Job, config: Outer[int], **others: Callable[[Inner], Any]
) -> Any:
    return first, more, here, config, others


def not_evaluated(value: Decimal) -> None: ...


def test_a_call_comes_out_as_it_was_bound_with_the_job() -> None:
    called = CalledFunction.of(function)
    bound = called.bind([1, "a", "a"], {"config": 2, "other": 3})
    job: Any = object()
    assert called.call(bound, job) == (1, ("a", "a"), job, 2, {"other": 3})


@pytest.mark.parametrize(("arguments", "named"), [([], {"config": 1}), ([1], {})])
def test_arguments_that_do_not_fit_are_refused(arguments: list[Any], named: dict[str, Any]) -> None:
    with pytest.raises(RemoteFunctionError, match=r"function\(\): missing a required.*\. here is the job's to give"):
        CalledFunction.of(function).bind(arguments, named)


def test_dataclasses_are_found_in_annotations_at_any_depth() -> None:
    assert CalledFunction.of(function).dataclasses == {"Inner": Inner, "Outer": Outer}


def test_annotations_that_cannot_be_evaluated_are_named() -> None:
    with pytest.raises(RemoteFunctionError, match=r"not_evaluated\(\) can't be evaluated: name 'Decimal'"):
        CalledFunction.of(not_evaluated)


def test_a_function_is_found_in_the_jobs_code_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("of_the_job")
    module.__file__ = str(tmp_path / "of_the_job.py")
    module.function = function  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "of_the_job", module)
    assert find_function("of_the_job:function", tmp_path) is function
    with pytest.raises(RemoteFunctionError, match=r"has no function gone\.away"):
        find_function("of_the_job:gone.away", tmp_path)
    with pytest.raises(RemoteFunctionError, match=r"json is .*, and not the job's own"):
        find_function("json:loads", tmp_path)
