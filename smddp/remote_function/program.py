"""The program of a remote function's job: each rank calls the function, and rank 0 writes its result."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from smddp.errors import RemoteFunctionError
from smddp.job import Job
from smddp.remote_function import travelling_values
from smddp.remote_function.called_function import CalledFunction, find_function
from smddp.remote_function.sent_call import PYTHON, SentCall
from smddp.training import run

ARGUMENTS = "smddp_arguments"
"""Path of the arguments' files in the code directory, without suffixes."""
RESULT = Path("smddp_result", "result")
"""Path of the result's files in the output data directory, without suffixes."""
SIGNATURE = RESULT.with_suffix(".hmac")
"""Path of the file with the HMAC of the result's document."""


def run_call() -> NoReturn:
    """Make the call that the job's request describes, and end the process, as `smddp.run` does."""
    run(_call)


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
