from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import pytest

from smddp.errors import RemoteFunctionError
from smddp.job import Job
from smddp.remote_function.called_function import CalledFunction, find_function

if TYPE_CHECKING:
    from decimal import Decimal

T = TypeVar("T")


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
