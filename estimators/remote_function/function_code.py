"""The code of a remote function's job: the function's own, located, and the directory that is sent with a call."""

from __future__ import annotations

import ast
import inspect
import shutil
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from estimators import source_code
from estimators.errors import EstimatorError, Problem
from smddp.python_syntax import call_parser

ENTRY_POINT = Path(__file__).with_name("smddp_call.py")
_OWN_PACKAGE = "estimators"
_REMEDY = "Define it in a module of its own, or give serializer='cloudpickle'"


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCode:
    """A module's function, as a job finds it."""

    module: str
    """The module's name in the job: for a script its file's name, not ``__main__``."""
    name: str
    """The function's qualified name in the module."""
    file: Path
    """The module's file."""
    root: Path
    """The directory from which Python imports the module: the code that the job gets."""

    @classmethod
    def of(cls, function: Callable[..., Any], source_dir: str | None, *, pickled: bool = False) -> FunctionCode | None:
        """Find a function's code in `source_dir`, by default the directory from which Python imports its module.

        Return None for a pickled function of a notebook, which has no file. Raise EstimatorError if a job can't find
        the function by its name or in `source_dir`, or if the directory contains more than a project.
        """
        name = function.__qualname__
        namespace = inspect.unwrap(function).__globals__
        if "<" in name and not pickled:
            what = "a lambda" if name.endswith("<lambda>") else "defined in another function"
            raise EstimatorError(f"{name} is {what}, so a job can't find it by its name. {_REMEDY}.")
        if not namespace.get("__file__"):
            if pickled:
                return None
            raise EstimatorError(
                f"{name}() is defined in a notebook or an interactive session, so there is no file to send. {_REMEDY}."
            )
        file = Path(namespace["__file__"]).resolve()
        spec = namespace.get("__spec__")
        module = spec.name if spec is not None else file.stem
        parts = [*module.split("."), *(["__init__"] if file.stem == "__init__" else [])]
        root = Path(*file.parts[: -len(parts)])
        if root.joinpath(*parts).with_suffix(".py") != file:
            raise EstimatorError(f"{name}() is in {file}, which can't be imported as {module}. Rename the file.")
        if not pickled and not _is_found(function, name, namespace):
            raise EstimatorError(f"{name} in {file} is no longer this function. {_REMEDY}.")
        _check_root(name, root, file, source_dir)
        return cls(module=module, name=name, file=file, root=root)


def check_guarded(function: Callable[..., Any]) -> None:
    """Raise EstimatorError if the call runs on import: the job imports the module, and would send another job."""
    own = inspect.unwrap(function).__code__.co_filename
    file = Path(own)
    frame = inspect.currentframe()
    while frame is not None:
        code, line = frame.f_code, frame.f_lineno
        if code.co_name == "<module>" and code.co_filename == own and file.is_file() and not _is_guarded(file, line):
            raise EstimatorError(
                f"{function.__qualname__}() is called by line {line} of {file.name}, which the job runs, too, when it "
                "imports the function from there. Put the call under: if __name__ == '__main__':"
            )
        frame = frame.f_back


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
            needed = call_parser(Requirement, f"cloudpickle=={version('cloudpickle')}")
            file = code / source_code.REQUIREMENTS
            file.write_text(source_code.with_requirements(file.read_text() if file.exists() else "", [needed]))
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return code, problems


def _is_guarded(file: Path, line: int) -> bool:
    """Return whether a line runs only if the file is the started script."""
    guards = (node for node in ast.walk(call_parser(ast.parse, file.read_bytes())) if isinstance(node, ast.If))
    return any(
        ast.unparse(node.test) in ("__name__ == '__main__'", "'__main__' == __name__")
        and node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)
        for node in guards
    )


def _is_found(function: Callable[..., Any], name: str, namespace: dict[str, Any]) -> bool:
    first, *rest = name.split(".")
    found = namespace.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return found is function or getattr(found, "function", None) is function


def _check_root(name: str, root: Path, file: Path, source_dir: str | None) -> None:
    installed = {Path(sysconfig.get_path(each)).resolve() for each in ("stdlib", "platstdlib", "purelib", "platlib")}
    if any(file.is_relative_to(each) for each in installed):
        raise EstimatorError(
            f"{name}() is in an installed package ({file}), which is not sent. Call it in a function of your own."
        )
    if source_dir is None and root in {Path(each).resolve() for each in (Path.home(), tempfile.gettempdir(), "/")}:
        raise EstimatorError(
            f"{name}() is in {file}, and all of {root} would be sent. Move the file into a directory of its own, or "
            f"say source_dir={str(root)!r}."
        )
    if source_dir is not None and Path(source_dir).resolve() != root:
        raise EstimatorError(
            f"source_dir is {source_dir}, and {name}() is imported from {root}. Give that, or leave source_dir out."
        )
