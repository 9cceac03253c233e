"""What Python runs as ``__main__``: a script by its path, or a module by its name, as ``python -m`` does.

A module is found without an import, which would run the code of its packages. A package may change ``__path__`` or
``sys.path`` when it is imported: whether its modules exist is then left to the ranks.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from smddp.display_text import shown_names
from smddp.job.near_names import near_name, no_script, notebook_remedy
from smddp.script_syntax.imports import brings_modules
from smddp.script_syntax.modules import Modules


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryPoint:
    """A script or a module, and what its syntax says before it runs."""

    words: tuple[str, ...]
    """The words of Python's command line that name it: ``train.py``, or ``-m`` and ``jobs.train``."""
    modules: Modules
    """Its file, and the modules of its own code; ``sys.path`` begins with the first of their directories."""
    missing: str = ""
    """The reason why Python can't find or run it; empty if it can, or if only a run can tell."""

    @property
    def name(self) -> str:
        """The file's name, or the module's dotted name."""
        return Path(self.words[-1]).name

    @property
    def path(self) -> Path:
        """Its file; one that does not exist if it was not found."""
        return self.modules.path


def find_entry_point(given: str | Path, *, module: bool = False) -> EntryPoint:
    """Return the script at a path; with `module`, the module of that name, as Python finds it from this directory.

    Examples:
        >>> find_entry_point("jobs.train", module=True).path
        PosixPath('/home/me/project/jobs/train.py')
    """
    if module:
        return _find_module(str(given))
    path = Path(given)
    missing = "" if path.is_file() else no_script(path)
    if missing and not Path(f"{given}.py").is_file():
        meant = _find_module(str(given))
        if not meant.missing and meant.path.is_relative_to(Path.cwd()):
            missing = f"There is no script {given}. Did you mean -m {given}?"
    if not missing and (remedy := notebook_remedy(path)):
        missing = f"{given} is a notebook. {remedy}"
    return EntryPoint(
        words=(str(given),), modules=Modules(path=path, directories=[path.parent], named={}), missing=missing
    )


def _find_module(name: str) -> EntryPoint:
    directory, parts = Path.cwd(), name.split(".")
    here = [] if _is_kept_from_here() else [str(directory)]
    found = _specs(parts, [*here, *sys.path]) if _is_name(name) else []
    is_found = len(found) >= len(parts) and not _is_package(found[-1])
    expected = directory.joinpath(*parts[:-1], f"{parts[-1]}.py")
    modules = Modules(
        path=Path(found[-1].origin or name) if is_found else expected,
        directories=[directory],
        named={parts[0]: _place(found[0])} if found else {},
        packages=[Path(each.origin) for each in found if _is_package(each) and each.origin],
    )
    is_surely_missing = not is_found and not any(map(brings_modules, modules.reached))
    return EntryPoint(
        words=("-m", name),
        modules=modules,
        missing=_why_missing(name, found, directory) if is_surely_missing else "",
    )


def _is_kept_from_here() -> bool:
    """Return whether PYTHONSAFEPATH, which the ranks inherit, keeps them from the working directory."""
    return sys.version_info >= (3, 11) and bool(os.environ.get("PYTHONSAFEPATH"))


def _is_name(name: str) -> bool:
    """Return whether Python would look for a module of this name."""
    return all(part and "/" not in part for part in name.split("."))


def _specs(parts: Sequence[str], places: Sequence[str]) -> list[ModuleSpec]:
    """Return what Python finds of a dotted name: its packages, and the module; of a package, its ``__main__``.

    Python's own finder looks for each part alone, in the directories of the package before it: by the whole name it
    would look that package up among the imported modules. Others, such as those of editable installations, know names.
    """
    found: list[ModuleSpec] = []
    names = (*parts, "__main__")
    for number, part in enumerate(names, 1):
        name = ".".join(names[:number])
        specs = (finder.find_spec(part if finder is PathFinder else name, places) for finder in sys.meta_path)
        if (spec := next(filter(None, specs), None)) is None:
            break
        found.append(spec)
        if not _is_package(spec):
            break
        places = list(spec.submodule_search_locations or ())
    return found


def _is_package(spec: ModuleSpec) -> bool:
    return spec.submodule_search_locations is not None


def _place(spec: ModuleSpec) -> Path:
    """Return the file of a module, or the directory of a package."""
    return Path(next(iter(spec.submodule_search_locations or ()), spec.origin or ""))


def _why_missing(name: str, found: Sequence[ModuleSpec], directory: Path) -> str:
    parts = name.split(".")
    if (directory / name).is_file():
        return f"{name} is a file, and -m takes the name of a module: leave -m out."
    if not _is_name(name):
        return f"-m takes the name of a module, such as jobs.train, and {name!r} is none."
    if found and not _is_package(found[-1]):
        module = ".".join(parts[: len(found)])
        remedy = f" Did you mean {module}?" if parts[len(found) :] == ["py"] else ""
        return f"There is no module {name}: {module} is a module, and no package.{remedy}"
    places = list(found[-1].submodule_search_locations or ()) if found else [str(directory)]
    known = sorted(each.name for each in pkgutil.iter_modules(places))
    if len(found) == len(parts):
        modules = f": give one of its modules, such as {shown_names(known)}" if known else ""
        return f"{name} is a package without the module __main__, which -m would run{modules}."
    if not found and _is_kept_from_here():
        return f"There is no module {name}: it is not installed, and PYTHONSAFEPATH keeps Python from {directory}."
    absent = parts[len(found)]
    if near := near_name(absent, known):
        corrected = [*parts[: len(found)], near, *parts[len(found) + 1 :]]
        return f"There is no module {name}. Did you mean {'.'.join(corrected)}?"
    installed = "" if found else ", and it is not installed"
    return f"There is no module {name}: {absent!r} is not in {shown_names(places)}{installed}."
