"""Check a job's requirements.txt before it is uploaded: lines that pip can't read, absent files, another PyTorch.

pip's rules of the file: https://pip.pypa.io/en/stable/reference/requirements-file-format/. Whether an index has a
package is left to pip.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement

from estimators.errors import Problem, error, warning
from estimators.source_code.source import REQUIREMENTS, SourceCode
from smddp.python_syntax import call_parser

_CONTINUED = re.compile(r"\\\r?\n")
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_FILE = re.compile(r"(?:-r|-c|--requirement|--constraint)[\s=]*(?P<path>\S+)")
_EDITABLE = re.compile(r"(?:-e\s*|--editable[\s=]+)(?P<path>.+)")
_OPTIONS_OF_LINE = re.compile(r"\s--?[a-z].*$")
"""Options after a requirement, such as ``--hash=sha256:…``."""
_EXTRAS = re.compile(r"\[[^\]]*\]$")
_ARCHIVES = (".whl", ".zip", ".tar.gz", ".tar.bz2", ".tar.xz", ".tgz")


def check_requirements(source: SourceCode, *, torch: str | None = None) -> Iterator[Problem]:
    """Yield the lines of requirements.txt that pip refuses, and those that replace PyTorch.

    `torch` is the version that the job finds installed, or None if unknown. Raise EstimatorError if a directory can't
    be read.
    """
    given = [(source.source_dir, ""), *((path, source.name_in_bundle(path)) for path in source.dependencies)]
    files = dict[str, Path]()
    for path, name in given:
        if path is not None and Path(path).is_dir():
            files |= {str(PurePosixPath(name, each)): Path(path, each) for each in source.tree(Path(path)).files}
        elif path is not None:
            files[name] = Path(path)
    directories = {str(above) for name in files for above in PurePosixPath(name).parents}
    pending, read = [REQUIREMENTS], set[str]()
    while pending:
        name = pending.pop()
        if name in read or name not in files:
            continue
        read.add(name)
        for number, line in _lines(files[name]):
            place = f"{files[name]}, line {number}"
            if included := _FILE.match(line):
                path = os.path.normpath(PurePosixPath(name).parent / included["path"])
                pending.append(path)
                yield from _missing(place, line, path, files)
            elif (path := _path_in(line)) is not None:
                yield from _missing(place, line, path, {*files, *directories})
            elif fault := _fault(line):
                remedy = "Write a package with its versions, such as einops>=0.8, or a comment with #."
                yield error("source_dir", f"{place}: {line!r} is no requirement: {fault}", remedy)
            elif torch is not None and _replaces_torch(line, torch):
                yield warning(
                    "source_dir",
                    f"{place}: by {line!r} pip replaces PyTorch {torch}, which the job has. Libraries that were built "
                    "for that version, such as torchvision and NCCL's plug-ins, may fail with another one",
                    "Take the line away, or let it allow that version. framework_version chooses AWS's image by it.",
                )


def _missing(place: str, line: str, path: str, bundled: Collection[str]) -> Iterator[Problem]:
    if path not in bundled and _is_bundled_path(path):
        found = f"{place}: {line!r} names {path}, which is not in the code that is uploaded"
        yield error("source_dir", found, "Put it in source_dir, or take the line away.")


def _is_bundled_path(path: str) -> bool:
    """Return whether a path leads into the bundle, and neither to an index, nor to a directory of the image."""
    return ":" not in path and "$" not in path and not path.startswith("/")


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the last line number and the text of each line that is neither empty nor a comment.

    Yield nothing for a file that is not UTF-8: pip knows other encodings.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):  # copying it will report the first
        return
    joined = _CONTINUED.sub("\0", text)  # keeps the count of lines
    number = 0
    for line in joined.splitlines():
        number += 1 + line.count("\0")
        if stripped := _COMMENT.sub("", line.replace("\0", "")).strip():
            yield number, stripped


def _path_in(line: str) -> str | None:
    """Return the path of a local package that a line names, or None if it names none."""
    text = _OPTIONS_OF_LINE.sub("", line)
    editable = _EDITABLE.match(text)
    path = _EXTRAS.sub("", (editable["path"] if editable else text).split(";")[0].strip())
    if "://" in path or " @ " in path or (line.startswith("-") and not editable):
        return None
    if editable or "/" in path or path.endswith(_ARCHIVES) or path == ".":
        return os.path.normpath(path)
    return None


def _replaces_torch(line: str, installed: str) -> bool:
    """Return whether pip replaces this version of PyTorch for a line; False if the line has a marker or a variable."""
    try:
        requirement = call_parser(Requirement, _OPTIONS_OF_LINE.sub("", line))
    except InvalidRequirement:
        return False
    if requirement.name.lower() != "torch" or requirement.marker is not None:
        return False
    return requirement.url is not None or not requirement.specifier.contains(installed, prereleases=True)


def _fault(line: str) -> str | None:
    """Return why a line is no requirement of a package by its name; None for an option, a URL or a variable."""
    text = _OPTIONS_OF_LINE.sub("", line)
    if line.startswith("-") or "://" in text or "$" in text:
        return None
    try:
        call_parser(Requirement, text)
    except InvalidRequirement as fault:
        return str(fault).splitlines()[0].rstrip(".")
    return None
