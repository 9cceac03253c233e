"""What a job's image holds, as far as it is known without pulling it: versions by its tag, packages by a list.

Of the list only the packages that the code imports count: all of them take many GB. Their versions are not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from estimators.checks.script.imports import imported_modules
from estimators.errors import EstimatorError
from estimators.plan.runtime import versions_of
from estimators.request.completed_job import CompletedJob
from estimators.source_code import SourceCode, package_requirements
from smddp.job.distribution_names import distributions_of

if TYPE_CHECKING:
    from estimators.sdk.library import Session


_NEEDED = ("boto3", "pip")
"""Packages of each image that smddp needs: pip installs requirements.txt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageContent:
    """The known content of an image."""

    torch: str
    """PyTorch's major and minor version."""
    python: str
    """Python's major and minor version."""
    requirements: tuple[str, ...]
    """What pip installs for it: torch of that version, and packages in any version."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], session: Session | None) -> ImageContent:
        """Return the content of the image of a job; raise EstimatorError if its versions are not known."""
        image = _image(arguments, session)
        torch, python = versions_of(image)
        if torch is None or python is None:
            raise EstimatorError(
                f"The job can't be rehearsed isolated: the PyTorch and Python of its image {image} are not known. "
                "Rehearse it without isolation, or train it in a container of the image: "
                "LocalSageMaker(executor=Docker(…))."
            )
        return cls(
            torch=torch,
            python=python,
            requirements=(
                *(f"torch=={torch}.*", *_NEEDED, *map(str, package_requirements())),
                *_imported(SourceCode.of(arguments)),
            ),
        )


def _image(arguments: Mapping[str, Any], session: Session | None) -> str | None:
    from estimators.sdk import sessions, training_images

    if (given := arguments.get("image_uri")) is not None:
        return str(given)
    chosen = CompletedJob.of(arguments, sessions.session_here(session)).chosen
    try:
        return None if chosen is None else training_images.image_uri(chosen)
    except ValueError as fault:
        raise EstimatorError(f"The job can't be rehearsed isolated: the SDK has no image for it: {fault}") from fault


def _imported(source: SourceCode) -> list[str]:
    """Return the packages of the image's known list that the code imports, except torch."""
    from estimators.sdk.training_images import KNOWN_MODULES

    modules = KNOWN_MODULES.intersection(imported_modules(source)) - {"torch"}
    return sorted(distributions_of(module)[0] for module in modules)
