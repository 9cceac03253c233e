"""What is wrong with a job's code before it is uploaded: what would fail in the container, or in the upload."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from estimators.errors import EstimatorError
from estimators.problem import Problem, error, nearest, warning
from estimators.source_code.ignore_rules import IGNORE_FILE
from estimators.source_code.package import PACKAGE, needs_package, package_requirements
from estimators.source_code.source import SourceCode
from estimators.source_code.tree import Tree
from smddp.launch.spawn_call import SPAWN_REMEDY, find_spawn_call

_SHOWN = 10
"""So many of the paths of a problem are named."""


def check(
    source: SourceCode, *, py_version: str | None, isolated: bool, launcher: str | None = None
) -> Iterator[Problem]:
    """Yield what would fail in the container, or in the middle of the upload.

    Args:
        source: The code.
        py_version: The container's Python as the SDK writes it, such as ``py312``; None if it may be any.
        isolated: The container has no network, and gets no wheels.
        launcher: What starts the script's ranks; None if the script is started alone.
    """
    if isinstance(source.git, Mapping) and not source.git.get("commit"):
        yield warning(
            "git_config",
            f"no commit is given, so the job gets what branch {source.git.get('branch') or 'HEAD'} is when it is sent",
            "Give 'commit', and the same code can be sent again.",
        )
    if not source.is_local:
        return
    if source.source_dir is not None and not Path(source.source_dir).is_dir():
        yield error("source_dir", f"there is no directory {source.source_dir}", "Give an existing one, or s3://….")
        return
    yield from _check_script(source, py_version)
    if launcher is not None and (line := find_spawn_call(source.script)) is not None:
        yield warning(
            "distribution",
            f"{source.script} spawns ranks in line {line}, and the distribution ({launcher}) starts ranks, too: if the "
            "script does so in each of them, they wait for one another until a timeout",
            SPAWN_REMEDY,
        )
    yield from _check_left_out(source)
    for dependency in source.dependencies:
        if not Path(dependency).exists():
            yield error("dependencies", f"there is no {dependency}", "Give existing files or directories.")
        elif source.name_in_bundle(dependency) == "..":
            found = f"{dependency} has no name to be bundled by"
            yield error("dependencies", found, f"Give {Path(dependency).resolve()}.")
    if isolated and needs_package(source):
        needed = ", ".join(requirement.name for requirement in package_requirements())
        yield warning(
            "enable_network_isolation",
            f"the script imports {PACKAGE}, whose requirements can't be installed without a network",
            f"Give the py_version of the image, and they travel as wheels; or use an image that has {needed}.",
        )


def _check_left_out(source: SourceCode) -> Iterator[Problem]:
    for directory in source.directories:
        parameter = "source_dir" if str(directory) == str(Path(source.source_dir or "")) else "dependencies"
        try:
            tree = Tree.of(directory)
        except EstimatorError as fault:
            yield error(parameter, str(fault), "Correct that, or name another directory.")
            continue
        yield from _check_secrets(parameter, tree)
        script = os.path.normpath(str(source.entry_point))
        if parameter == "source_dir" and source.script.is_file() and tree.leaves_out(script):
            found = f"{source.entry_point} is not uploaded: {directory / IGNORE_FILE}, or its name, leaves it out"
            yield error("entry_point", found, "Let the job have its script.")


def _check_secrets(parameter: str, tree: Tree) -> Iterator[Problem]:
    if tree.secrets:
        yield warning(
            parameter,
            f"not uploaded, for it looks secret: {_listed(tree, tree.secrets)}",
            "Let the job fetch it, from AWS Secrets Manager for instance. If it is none, a line with ! and its name in "
            f"{tree.root / IGNORE_FILE} lets it be uploaded, such as !{tree.secrets[0]}.",
        )
    if tree.let_through:
        yield warning(
            parameter,
            f"uploaded, though it looks secret: {_listed(tree, tree.let_through)}",
            f"{tree.root / IGNORE_FILE} says so by name. Whoever can read the bucket can read it.",
        )


def _listed(tree: Tree, paths: Sequence[str]) -> str:
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    return ", ".join(str(tree.root / path) for path in paths[:_SHOWN]) + more


def _check_script(source: SourceCode, py_version: str | None) -> Iterator[Problem]:
    script = source.script
    if source.source_dir is not None and Path(os.path.normpath(str(source.entry_point))).parts[:1] == ("..",):
        yield error(
            "entry_point",
            f"{source.entry_point} is outside of source_dir {source.source_dir}",
            "Only source_dir is uploaded: give the script's path inside it.",
        )
    elif not script.is_file():
        there = sorted(path.name for path in script.parent.glob("*.py")) if script.parent.is_dir() else []
        remedy = nearest(script.name, there) if there else "Give the path of the training script."
        yield error("entry_point", f"there is no file {script}", remedy)
    elif script.suffix == ".py":
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as fault:
            line = getattr(fault, "lineno", None)
            place = f"{script}, line {line}" if line else str(script)
            is_newer = py_version is None or _version(py_version) > sys.version_info[:2]
            yield (warning if is_newer else error)(
                "entry_point",
                f"{place}: {getattr(fault, 'msg', fault)}",
                f"This Python {sys.version_info[0]}.{sys.version_info[1]} can't compile it.",
            )


def _version(py_version: str) -> tuple[int, int]:
    """Return ``py312`` as (3, 12), and ``py3`` as (3, 0)."""
    digits = py_version.removeprefix("py")
    return int(digits[:1] or 0), int(digits[1:] or 0)
