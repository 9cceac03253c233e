"""The program of a remote function's job: each rank calls the function, and rank 0 writes its result.

The function's signature says which parameters receive the job, and which dataclasses the values may contain.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from smddp.errors import RemoteFunctionError
from smddp.job import Job
from smddp.job.main_arguments import takes_job
from smddp.remote_function import travelling_values
from smddp.remote_function.sent_call import PYTHON, SentCall
from smddp.training import run

ARGUMENTS = "smddp_arguments"
"""Path of the arguments' files in the code directory, without suffixes."""
RESULT = Path("smddp_result", "result")
"""Path of the result's files in the output data directory, without suffixes."""
SIGNATURE = RESULT.with_suffix(".hmac")
"""Path of the file with the HMAC of the result's document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledFunction:
    """A function, and what its signature says."""

    function: Callable[..., Any]
    signature: inspect.Signature
    job_parameters: tuple[str, ...]
    """Parameters that receive the `smddp.Job`: named ``job``, or annotated with it. The caller omits them."""
    dataclasses: Mapping[str, type]
    """Dataclasses in the annotations, and in their fields' annotations, by ``module:name``. The function's own module
    is left out of the key, because a script's module is called ``__main__`` only where it is started."""

    @classmethod
    def of(cls, function: Callable[..., Any]) -> CalledFunction:
        """Inspect a function; raise RemoteFunctionError if its annotations can't be evaluated."""
        try:
            hints = get_type_hints(function)
            found = _dataclasses([hint for name, hint in hints.items() if not takes_job(name, hint)])
        except Exception as error:  # annotations are the user's expressions
            raise RemoteFunctionError(
                f"the annotations of {function.__qualname__}() can't be evaluated: {error}. Import what they name at "
                "run time, not under TYPE_CHECKING alone, or leave them out"
            ) from error
        signature = inspect.signature(function)
        module = function.__module__
        return cls(
            function=function,
            signature=signature,
            job_parameters=tuple(name for name in signature.parameters if takes_job(name, hints.get(name))),
            dataclasses={
                each.__qualname__ if each.__module__ == module else f"{each.__module__}:{each.__qualname__}": each
                for each in found
            },
        )

    def bind(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the caller's arguments by parameter name; raise RemoteFunctionError if they do not fit."""
        given = [each for name, each in self.signature.parameters.items() if name not in self.job_parameters]
        try:
            return self.signature.replace(parameters=given).bind(*arguments, **named).arguments
        except TypeError as error:
            given_by_job = "".join(f". {name} is the job's to give: leave it out" for name in self.job_parameters)
            raise RemoteFunctionError(f"{self.function.__qualname__}(): {error}{given_by_job}") from error

    def call(self, arguments: Mapping[str, Any], job: Job) -> Any:
        """Call the function with arguments by parameter name, and the job."""
        bound = inspect.BoundArguments(self.signature, {**arguments, **dict.fromkeys(self.job_parameters, job)})
        return self.function(*bound.args, **bound.kwargs)


def find_function(reference: str, code_dir: Path) -> Callable[..., Any]:
    """Import ``module:qualified.name`` from the job's code in ``code_dir``, and return the function.

    Python must search ``code_dir`` first. Raise RemoteFunctionError if the function is absent, or its module is another
    one of the same name.
    """
    module_name, _, name = reference.partition(":")
    module = importlib.import_module(module_name)
    if not Path(module.__file__ or "/").resolve().is_relative_to(code_dir.resolve()):
        raise RemoteFunctionError(
            f"{module_name} is {module.__file__} here, and not the job's own: rename the module that has {name}()"
        )
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    function: Any = found if inspect.isfunction(found) else getattr(found, "function", None)
    if not inspect.isfunction(function):
        raise RemoteFunctionError(f"{module.__file__} has no function {name}: is it defined only where it was called?")
    return function


def _dataclasses(hints: list[Any]) -> list[type]:
    """Return the dataclasses in annotations, at any depth."""
    found: list[type] = []
    while hints:
        hint = hints.pop()
        hints += [*get_args(hint), *filter(None, [get_origin(hint)])]
        if isinstance(hint, list):  # the parameters of a Callable
            hints += hint
        if isinstance(hint, type) and is_dataclass(hint) and hint not in found:
            found.append(hint)
            hints += get_type_hints(hint).values()
    return found


def run_call() -> NoReturn:
    """Make the call that the job's request describes, and end the process, as `smddp.run` does."""
    run(_call, watch=False)  # a function need not train: it may wait for something


def _call(job: Job) -> None:
    call = SentCall.read(os.environ)
    code_dir = Path(sys.argv[0]).absolute().parent
    arguments = code_dir / ARGUMENTS
    if call.serializer == "cloudpickle":
        if call.python != PYTHON:
            raise RemoteFunctionError(
                f"{call.function} was pickled by Python {call.python}, and this is {PYTHON}, which can't run its code. "
                "Give py_version or an image of the sender's version, or do without serializer='cloudpickle'"
            )
        # A pickled function brings only the names that its body uses, so its annotations can't be evaluated.
        called, given = travelling_values.read(
            arguments, serializer=call.serializer, check=call.check_arguments, dataclasses={}
        )
    else:
        called = CalledFunction.of(find_function(call.function, code_dir))
        given = travelling_values.read(
            arguments, serializer=call.serializer, check=call.check_arguments, dataclasses=called.dataclasses
        )
    try:
        result = called.call(given, job)
    except SystemExit as ending:
        if ending.code in (None, 0):  # smddp.run would treat it as a good end
            raise RemoteFunctionError(
                f"{call.function} ended by sys.exit(), and so has no result: let it return"
            ) from None
        raise
    if job.cluster.is_main:
        _write(result, call, called, job.output_data_dir)


def _write(result: object, call: SentCall, called: CalledFunction, directory: Path) -> None:
    place = directory / RESULT
    place.parent.mkdir(parents=True, exist_ok=True)
    document, _ = travelling_values.write(
        result, place, serializer=call.serializer, called="result", dataclasses=called.dataclasses
    )
    (directory / SIGNATURE).write_text(call.sign(document))
