"""The code of a remote function's job: the user's own, the program that makes the call, and the arguments."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement

from estimators import source_code
from estimators.errors import EstimatorError
from estimators.problem import Problem

ENTRY_POINT = Path(__file__).with_name("smddp_call.py")
_OWN_PACKAGE = "estimators"


def code_with_call(
    root: Path | None, dependencies: Sequence[str], arguments: Sequence[Path], *, script: Path | None, pickled: bool
) -> tuple[Path, tuple[Problem, ...]]:
    """Make the directory of a job's code, inside a new directory that the caller removes; return it with its warnings.

    `root` and `dependencies` are the user's code, `arguments` the files of the call. `script` is the file of `root`
    that must be included, and `pickled` adds cloudpickle. Raise EstimatorError if the code can't be sent.
    """
    own = [] if root is None else [f"{root}/"]  # the slash: its content, not the directory itself
    source = source_code.SourceCode(
        entry_point=str(ENTRY_POINT), source_dir=None, dependencies=(*own, *dependencies, *map(str, arguments))
    )
    if source_code.imports_package(source, _OWN_PACKAGE) and not (root and (root / _OWN_PACKAGE).is_dir()):
        # The script that sends the job often contains the function, and imports this package.
        package = str(source_code.package_directory(_OWN_PACKAGE))
        source = replace(source, dependencies=(*source.dependencies, package))
    problems = tuple(source_code.check(source, py_version=None, isolated=False))
    if errors := [problem for problem in problems if problem.severity == "error"]:
        raise EstimatorError("; ".join(map(str, errors)), errors)
    directory = Path(tempfile.mkdtemp(prefix="smddp-call-"))
    try:
        code = directory / "code"
        source_code.stage(source, into=code)
        if script is not None and root is not None and not (code / script.relative_to(root)).is_file():
            raise EstimatorError(
                f"{script} has the function, and is not sent: {root / '.smddpignore'}, or its name, leaves it out."
            )
        if pickled:
            needed = Requirement(f"cloudpickle=={version('cloudpickle')}")
            file = code / source_code.REQUIREMENTS
            file.write_text(source_code.with_requirements(file.read_text() if file.exists() else "", [needed]))
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return code, problems
