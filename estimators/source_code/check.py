"""Check a job's code before it is uploaded: find what would fail in the container, or during the upload."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from estimators.errors import EstimatorError, Problem, error, there_are, warning
from estimators.source_code.requirements import check_requirements
from estimators.source_code.source import PACKAGE, SourceCode, imports_at_top, needs_package, package_requirements
from estimators.source_code.tree import IGNORE_FILE, Tree
from smddp.container.source import fault_of_name, fault_under_torchrun, is_package
from smddp.display_text import as_size, shown_names
from smddp.job.near_names import near_directory, near_path, near_script, notebook_remedy
from smddp.process.script_multiprocessing import SPAWN_REMEDY, spawn_call_in
from smddp.script_syntax import brings_modules, hiding_modules

_OTHER_ARCHIVES = tuple(
    suffix for name, suffixes, _ in shutil.get_unpack_formats() if name != "gztar" for suffix in suffixes
)
_SHOWN = 10
"""Most paths that a problem names."""
_LARGE = 50 * 10**6
"""Bytes of code that may be a mistake: a run directory with checkpoints, or data."""
_LARGEST = 3
"""Most entries of a large directory that a problem names."""


def check(
    source: SourceCode,
    *,
    py_version: str | None,
    isolated: bool,
    launcher: str | None = None,
    runs_here: bool = False,
    torch: str | None = None,
) -> Iterator[Problem]:
    """Yield what would fail in the container, or during the upload.

    `py_version` is the container's Python as in ``py312``, or None if unknown. `isolated` means no network and no
    wheels. `launcher` starts the script's ranks; None means that the script starts alone. With `runs_here`, this Python
    runs the job in place of the container's. `torch` is the version of PyTorch that runs it, None if unknown.
    """
    if isinstance(source.git, Mapping) and not source.git.get("commit"):
        yield warning(
            "git_config",
            "no commit is given, so the job gets the newest commit of "
            f"{source.git.get('branch') or 'HEAD'} when it is sent",
            "Give 'commit', and the same code can be sent again.",
        )
    yield from _check_form(source, launcher)
    if not source.is_local:
        return
    if source.source_dir is not None and not Path(source.source_dir).is_dir():
        meant = _did_you_mean(near_directory(Path(source.source_dir)))
        yield error(
            "source_dir", f"there is no directory {source.source_dir}", f"{meant}Give an existing one, or s3://…."
        )
        return
    yield from _check_script(source, py_version, runs_here=runs_here)
    yield from _check_modules_beside(source, runs_here=runs_here)
    yield from _check_hidden_modules(source)
    if launcher is not None and (line := spawn_call_in(source.modules.script.nodes)) is not None:
        yield warning(
            "distribution",
            f"{source.script} spawns ranks in line {line}, and the distribution ({launcher}) starts ranks, too: if the "
            "script does so in each of them, they wait for one another until a timeout",
            SPAWN_REMEDY,
        )
    yield from _check_left_out(source)
    with suppress(EstimatorError):  # `_check_left_out` reports it
        yield from check_requirements(source, torch=torch)
    for dependency in source.dependencies:
        if not Path(dependency).exists():
            meant = _did_you_mean(near_path(Path(dependency)))
            yield error("dependencies", f"there is no {dependency}", f"{meant}Give existing files or directories.")
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


def _check_form(source: SourceCode, launcher: str | None) -> Iterator[Problem]:
    """Yield what a container refuses before it starts the script."""
    archive = str(source.source_dir or "")
    if archive.lower().startswith("s3://") and archive.lower().endswith(_OTHER_ARCHIVES):
        yield error("source_dir", f"{archive} is no .tar.gz, and containers unpack no other archive", "Pack it as one.")
    if not isinstance(source.entry_point, str) or _is_above(source) or (source.is_local and source.script.is_dir()):
        return  # `_check_script` reports it
    if fault := fault_of_name(source.program):
        plain = os.path.normpath(source.program)
        remedy = f"Give {plain!r}." if fault_of_name(plain) is None else "Rename it."
        yield error("entry_point", f"every container refuses it: {fault.rstrip('.')}", remedy)
    package = is_package(source.program, _names_at_top(source))
    if package and not source.program.endswith(".py"):
        found = f"{source.program} is started as a module, by python -m, because of the setup.py beside it"
        yield error("entry_point", found, "Call it .sh if a shell shall run it, or take setup.py away.")
    if launcher == "torchrun" and (fault := fault_under_torchrun(source.program, package=package)):
        yield error("distribution", fault.rstrip("."), "Give a Python file, without a setup.py beside it.")


def _names_at_top(source: SourceCode) -> set[str]:
    """Return the names of the files at the top of the bundle; empty for code outside this machine."""
    if not source.is_local:
        return set()
    given = [(source.source_dir, ""), *((path, source.name_in_bundle(path)) for path in source.dependencies)]
    names = {name for path, name in given if path and Path(path).is_file()}
    with suppress(EstimatorError):  # `_check_left_out` reports it
        for path, name in given:
            if path and not name and Path(path).is_dir():
                names |= set(source.tree(Path(path)).files)
    return names


def _check_modules_beside(source: SourceCode, *, runs_here: bool) -> Iterator[Problem]:
    """Yield the modules next to a script that it imports, if the script is uploaded alone.

    It is an error if this Python runs the job and has none of that name; an image may have one, and a script may add
    directories to ``sys.path``.
    """
    if source.source_dir is not None or not source.script.is_file():
        return
    bundled = {Path(source.name_in_bundle(path)).stem for path in source.dependencies}
    imported = imports_at_top(source) - bundled - {PACKAGE}
    here = source.script.parent
    if beside := sorted(name for name in imported if (here / f"{name}.py").is_file() or _is_module(here / name)):
        lie = "lies" if len(beside) == 1 else "lie"
        is_sure = runs_here and not brings_modules(source.modules.script) and not _are_installed(beside)
        yield (error if is_sure else warning)(
            "entry_point",
            f"{source.script} is uploaded alone, and imports {', '.join(beside)}, which {lie} beside it",
            f"Give source_dir={str(here)!r} and entry_point={source.script.name!r}, or name them in dependencies.",
        )


def _check_hidden_modules(source: SourceCode) -> Iterator[Problem]:
    """Yield the files of the bundle that hide a module of Python's own, torch, NumPy or smddp from the script."""
    if not source.script.is_file():
        return
    hiding = hiding_modules(source.script.parent)
    if source.source_dir is None:  # the script is uploaded alone
        hiding = [name for name in hiding if name == source.script.name]
    elif Path(source.source_dir).resolve() != source.script.parent.resolve():  # it is on PYTHONPATH
        hiding += hiding_modules(Path(source.source_dir))
    if hiding:
        yield warning(
            "entry_point" if source.source_dir is None else "source_dir",
            f"the script finds {', '.join(hiding)} in place of the module of that name, and torch or smddp may need it",
            "Rename it.",
        )


def _are_installed(modules: Sequence[str]) -> bool:
    """Return whether a new process of this Python finds top-level modules, wherever this process found its own."""
    program = "import sys; from importlib.util import find_spec; sys.exit(not all(map(find_spec, sys.argv[1:])))"
    return subprocess.run([sys.executable, "-c", program, *modules], cwd="/", check=False).returncode == 0


def _is_module(directory: Path) -> bool:
    return directory.is_dir() and any(directory.glob("*.py"))


def _is_above(source: SourceCode) -> bool:
    return source.source_dir is not None and Path(os.path.normpath(str(source.entry_point))).parts[:1] == ("..",)


def _check_left_out(source: SourceCode) -> Iterator[Problem]:
    for directory in source.directories:
        parameter = "source_dir" if str(directory) == str(Path(source.source_dir or "")) else "dependencies"
        try:
            tree = source.tree(directory)
        except EstimatorError as fault:
            yield error(parameter, str(fault), "Correct that, or name another directory.")
            continue
        yield from _check_secrets(parameter, tree)
        yield from _check_size(parameter, tree)
        if tree.links_out:
            yield warning(
                parameter,
                f"uploaded, though the link leads out of {directory}: {_listed_links(tree, tree.links_out)}",
                f"If it is no code of the job, a line with its name in {directory / IGNORE_FILE} leaves it here.",
            )
        if tree.dangling:
            yield warning(
                parameter,
                f"not uploaded, for the target of the link is absent: {_listed_links(tree, tree.dangling)}",
                f"Restore the target, or remove the link; a line with its name in {directory / IGNORE_FILE} says that "
                "the job does not need it.",
            )
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


def _check_size(parameter: str, tree: Tree) -> Iterator[Problem]:
    """Yield that a directory is large, with its largest entries."""
    sizes = Counter[str]()
    for path in tree.files:
        with suppress(OSError):  # copying it will report the error
            sizes[path.partition("/")[0]] += (tree.root / path).stat().st_size
    if sizes.total() > _LARGE:
        largest = ", ".join(f"{tree.root / name} ({as_size(size)})" for name, size in sizes.most_common(_LARGEST))
        yield warning(
            parameter,
            f"{as_size(sizes.total())} of code are uploaded; the largest in it: {largest}",
            f"A line with the name of what is no code, such as {sizes.most_common(1)[0][0]}, in "
            f"{tree.root / IGNORE_FILE} leaves it here; bring data by a channel.",
        )


def _listed(tree: Tree, paths: Sequence[str]) -> str:
    return shown_names((tree.root / path for path in paths), most=_SHOWN)


def _listed_links(tree: Tree, paths: Sequence[str]) -> str:
    links = [tree.root / path for path in paths]
    targets = [f"{link} → {link.resolve()}" for link in links[:_SHOWN]]
    return shown_names([*targets, *links[_SHOWN:]], most=_SHOWN)


def _check_script(source: SourceCode, py_version: str | None, *, runs_here: bool) -> Iterator[Problem]:
    script = source.script
    if _is_above(source):
        yield error(
            "entry_point",
            f"{source.entry_point} is outside of source_dir {source.source_dir}",
            "Only source_dir is uploaded: give the script's path inside it.",
        )
    elif not script.is_file():
        if script.is_dir():
            yield error("entry_point", f"{source.entry_point!r} is a directory", "Give the training script in it.")
        else:
            yield error("entry_point", f"there is no file {script}", _remedy_of_missing_script(source))
    elif remedy := notebook_remedy(script):
        yield error("entry_point", f"{script} is a notebook", f"{remedy}.")
    elif fault := source.modules.script.syntax_fault:
        line = getattr(fault, "lineno", None)
        place = f"{script}, line {line}" if line else str(script)
        is_newer = not runs_here and (py_version is None or _version(py_version) > sys.version_info[:2])
        this = f"This Python {sys.version_info[0]}.{sys.version_info[1]}{', which runs the job,' if runs_here else ''}"
        yield (warning if is_newer else error)(
            "entry_point",
            f"{place}: {getattr(fault, 'msg', fault)}",
            f"{this} can't compile it.",
        )


def _remedy_of_missing_script(source: SourceCode) -> str:
    near = near_script(source.script)
    there = source.script.parent.glob("*.py") if near is None else [near]
    names = [str(path.relative_to(source.source_dir) if source.source_dir else path) for path in there]
    if near is not None:
        return f"Did you mean {names[0]!r}?"
    return there_are(names) if names else "Give the path of the training script."


def _did_you_mean(near: Path | None) -> str:
    return "" if near is None else f"Did you mean {str(near)!r}? "


def _version(py_version: str) -> tuple[int, int]:
    """Return ``py312`` as (3, 12), and ``py3`` as (3, 0)."""
    digits = py_version.removeprefix("py")
    return int(digits[:1] or 0), int(digits[1:] or 0)
