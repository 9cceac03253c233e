"""AWS's training images: which versions of PyTorch and Python the SDK has, on what, and with which distribution.

What the SDK accepts is found out by asking it, so that a newer SDK needs no change here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from packaging.version import Version

from estimators.image import Framework
from estimators.sdk.library import fw_utils, image_uris
from estimators.sdk.quiet import without_log

_TABLES = ("pytorch", "pytorch-neuron")
"""The SDK's tables of training images: for CPUs and GPUs, and for Trainium."""


_found: dict[str, str] = {}
"""The SDK's answers, by the arguments."""


def found_uri(**asked: Any) -> str:
    """Return what the SDK's ``image_uris.get_training_image_uri`` returns, and remember the answer.

    The SDK reads the table of all endpoints of AWS for each answer, and a ``fit()`` asks it seven times.

    Raises:
        ValueError: The SDK has none.
    """
    try:
        question = json.dumps(asked, sort_keys=True)
    except TypeError:  # a pipeline's variable or a compiler's configuration: looked up each time
        uri: str = image_uris.get_training_image_uri(**asked)
        return uri
    if question not in _found:
        _found[question] = image_uris.get_training_image_uri(**asked)
    return _found[question]


def image_uri(framework: Framework) -> str:
    """Return the image of a job.

    Raises:
        ValueError: The SDK has none.
    """
    return found_uri(
        region=framework.region,
        framework="pytorch",
        framework_version=framework.version,
        py_version=framework.py_version,
        image_uri=framework.image_uri,
        distribution=framework.distribution,
        compiler_config=framework.compiler_config,
        instance_type=framework.image_instance_type,
    )


def refusal(framework: Framework) -> str | None:
    """Return why the SDK refuses a combination of distribution, instance type and version; None if it takes it."""
    try:
        with without_log():
            validated_distribution(framework)
            image_uri(framework)
    except (ValueError, KeyError) as fault:
        return " ".join(str(fault).split()).rstrip(".")
    except (AttributeError, TypeError):
        return None  # the SDK stumbles over a value of a wrong type, which our own checks name
    return None


def choose_versions(framework: Framework) -> tuple[Framework, str | None]:
    """Fill in the versions that are open: the newest that the SDK accepts.

    Returns:
        The framework with both versions, and why the SDK refuses it: None, unless it refuses every choice.
    """
    candidates = [
        replace(framework, version=version, py_version=py_version)
        for version, py_version in _known_versions()
        if framework.version in (None, version) and framework.py_version in (None, py_version)
    ]
    if not candidates:
        newest, newest_python = _known_versions()[0]
        candidates = [
            replace(
                framework,
                version=framework.version or newest,
                py_version=framework.py_version or newest_python,
            )
        ]
    accepted = next((candidate for candidate in candidates if refusal(candidate) is None), None)
    return (accepted, None) if accepted else (candidates[0], refusal(candidates[0]))


@lru_cache(maxsize=1)
def _known_versions() -> tuple[tuple[str, str], ...]:
    """Return the versions of PyTorch that the SDK has images of, each with its Python; newest first."""
    known = set()
    for name in _TABLES:
        table = image_uris.config_for_framework(name)["training"]
        full = {version: version for version in table["versions"]}
        for version, meant in {**table["version_aliases"], **full}.items():
            known |= {(version, py_version) for py_version in table["versions"][meant]["py_versions"]}
    return tuple(sorted(known, key=_newness, reverse=True))


def _newness(pair: tuple[str, str]) -> tuple[Version, int, int]:
    """Return a key that orders versions; of "2.8" and "2.8.0" the exact one is preferred."""
    version, py_version = pair
    return Version(version), len(version), int(py_version.removeprefix("py"))


def validated_distribution(framework: Framework) -> dict[str, Any]:
    """Return the distribution as the SDK has checked and completed it; empty if there is none.

    Raises:
        ValueError: The SDK refuses it.
    """
    if framework.distribution is None:
        return {}
    validated: dict[str, Any] = fw_utils.validate_distribution(
        _as_validated(framework.distribution),
        framework.instance_groups,
        "pytorch",
        framework.version,
        framework.py_version,
        framework.image_uri,
        {"entry_point": framework.entry_point, "instance_type": framework.instance_type},
    )
    return validated


def _as_validated(distribution: Mapping[str, Any]) -> dict[str, Any]:
    """Return the distribution as ``PyTorch`` itself hands it to the SDK's checks."""
    renamed = dict(distribution)
    if "pytorchddp" in renamed:
        renamed["smdistributed"] = {"dataparallel": renamed.pop("pytorchddp")}
    return renamed


def data_parallel_instance_types() -> tuple[str, ...]:
    """Return the instance types that the SDK knows SMDDP to run on; the SDK lists them, but never looks."""
    return tuple(fw_utils.SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES)
