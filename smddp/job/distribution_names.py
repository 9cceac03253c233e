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
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(?P<module>\w+)'")
"""Matches the error about a top-level module. One about ``a.b`` says that ``a`` was found."""


def distributions_of(module: str) -> tuple[str, ...]:
    """Return the names by which pip may install a top-level module, the usual one first."""
    return _FAMOUS.get(module, (module.replace("_", "-"),))


def missing_package(error: str, code_dir: Path) -> str | None:
    """Return the package that a ModuleNotFoundError misses; None for other errors, and for the user's own files.

    A module that `is_in` the code is the user's own.
    """
    found = _MISSING.search(error)
    if found is None or (module := found["module"]) in sys.stdlib_module_names:
        return None
    return None if is_in(code_dir, module) else distributions_of(module)[0]


def is_in(code_dir: Path, module: str) -> bool:
    """Return whether code has a file or directory of a top-level module's name, at its top or one directory below."""
    patterns = (f"{prefix}{module}{suffix}" for prefix in ("", "*/") for suffix in ("", ".py", ".*.so"))
    return any(next(code_dir.glob(pattern), None) is not None for pattern in patterns)
