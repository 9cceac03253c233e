"""The build context of a training image: the recipe and the installed smddp.

The recipe is the repository's docker/ folder and the tested versions. A wheel contains both, so no checkout is needed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

from estimators.source_code import PACKAGE, REQUIREMENTS, package_directory

_CHECKOUT = Path(__file__).parents[2]
_INSTALLED = Path(__file__).with_name("recipe")

RECIPE = _INSTALLED if _INSTALLED.is_dir() else _CHECKOUT / "docker"
"""Directory of the Dockerfile and of make-base, which makes a base image where no registry can be reached."""

_CONSTRAINTS = (_INSTALLED if _INSTALLED.is_dir() else _CHECKOUT) / "constraints.txt"


@contextmanager
def build_context() -> Iterator[Path]:
    """Make a temporary directory with the Dockerfile and everything it copies; remove it at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="smddp-image-") as name:
        context = Path(name)
        shutil.copytree(RECIPE, context, dirs_exist_ok=True)
        shutil.copy(_CONSTRAINTS, context)
        (context / REQUIREMENTS).write_text("".join(f"{requirement}\n" for requirement in _requirements()))
        shutil.copytree(package_directory(), context / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
        yield context


def _requirements() -> list[Requirement]:
    """Return the requirements of smddp without its extras."""
    declared = [Requirement(text) for text in requires(PACKAGE) or ()]
    return [each for each in declared if "extra" not in str(each.marker or "")]
