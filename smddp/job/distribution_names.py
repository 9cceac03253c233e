"""The packages that may contain a module: PyYAML for ``yaml``. A table of the famous names that differ."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_FAMOUS = {
    "Bio": ("biopython",),
    "PIL": ("pillow",),
    "attr": ("attrs",),
    "bs4": ("beautifulsoup4",),
    "cv2": (
        "opencv-python",
        "opencv-python-headless",
        "opencv-contrib-python",
        "opencv-contrib-python-headless",
    ),
    "dateutil": ("python-dateutil",),
    "distutils": ("setuptools",),
    "dotenv": ("python-dotenv",),
    "faiss": ("faiss-cpu", "faiss-gpu"),
    "fitz": ("PyMuPDF",),
    "git": ("GitPython",),
    "google": ("protobuf",),
    "hydra": ("hydra-core",),
    "imblearn": ("imbalanced-learn",),
    "jwt": ("PyJWT",),
    "mpl_toolkits": ("matplotlib",),
    "osgeo": ("GDAL",),
    "pkg_resources": ("setuptools",),
    "serial": ("pyserial",),
    "skimage": ("scikit-image",),
    "sklearn": ("scikit-learn",),
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    "umap": ("umap-learn",),
    "yaml": ("PyYAML",),
}
_ON_NO_INDEX = {
    "apex": "Build NVIDIA's apex from its source, or use an image that has it: the apex of PyPI is another project.",
    "smdistributed": "Only AWS's images for it have it, and no package index. Give distribution='smdistributed' on "
    "AWS, run such an image here by LocalSageMaker(executor=Docker()), or leave the import out.",
}
"""Modules whose names another project has on PyPI, or could take there, and how to get them."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(?P<module>\w+)'")
"""Matches the error about a top-level module. One about ``a.b`` says that ``a`` was found."""


def distributions_of(module: str) -> tuple[str, ...]:
    """Return the names by which pip may install a top-level module, the usual one first."""
    return _FAMOUS.get(module, (module.replace("_", "-"),))


def without_index(module: str) -> str | None:
    """Return how to get a top-level module that pip must not install by its name; None if pip may."""
    return _ON_NO_INDEX.get(module)


def missing_module(error: str, code_dir: Path) -> str | None:
    """Return the module that a ModuleNotFoundError misses; None for other errors, and for the user's own files.

    A module that `is_in` the code is the user's own.
    """
    found = _MISSING.search(error)
    if found is None or (module := found["module"]) in sys.stdlib_module_names:
        return None
    return None if is_in(code_dir, module) else module


def is_in(code_dir: Path, module: str) -> bool:
    """Return whether code has a file or directory of a top-level module's name, at its top or one directory below."""
    patterns = (f"{prefix}{module}{suffix}" for prefix in ("", "*/") for suffix in ("", ".py", ".*.so"))
    return any(next(code_dir.glob(pattern), None) is not None for pattern in patterns)
