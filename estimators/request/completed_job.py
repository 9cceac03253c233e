"""A job's parameters as its request needs them: completed once, for the service that runs it, by its code and image.

Hyperparameters that are too large for a request are sent as a file in the code's bundle:

1. The API takes 100 of them, of 2,500 characters each.
2. AWS's training toolkit does not know the file: in its images only smddp reads these hyperparameters.
3. So a job whose script does not use smddp is refused, unless it has its own image.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from estimators import metric_definition, source_code
from estimators.checks import aws_limits
from estimators.checks.parameters import is_local_mode
from estimators.errors import Problem, error, warning
from estimators.source_code import PACKAGE, SourceCode, calls_package
from smddp.display_text import shown_names
from smddp.job.hyperparameters.sources import BUNDLED_FILE, MOST_BYTES, POINTER, bundle_file

if TYPE_CHECKING:
    from estimators.sdk.library import Session
    from estimators.sdk.training_images import Framework

logger = logging.getLogger(__name__)

_OF_SDK = 12
"""The most hyperparameters that the SDK and we add: the launcher's, the job's name and region, the code's URI."""
_STAYS = "sagemaker_"
"""Prefix of the hyperparameters that the platform itself reads: they always stay in the request."""
_READERS = frozenset(
    {
        *(f"{PACKAGE}.run", f"{PACKAGE}.training.run", f"{PACKAGE}.hydra.main"),
        *(f"{PACKAGE}.Job.detect", f"{PACKAGE}.job.Job.detect", f"{PACKAGE}.job.hyperparameters.load"),
    }
)
"""The functions, by their full names, by which a script reads hyperparameters through smddp."""


class Backend(Enum):
    """The service that runs a job, by its instance type and session."""

    SAGEMAKER = auto()
    """AWS, or a local platform."""
    DOCKER = auto()
    """Docker on this machine, by our own engine."""
    SDK_LOCAL_MODE = auto()
    """Docker on this machine, by the SDK's Local Mode."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], session: Session | None) -> Backend:
        """Return the backend of a job with these parameters on this session."""
        from estimators.sdk.adapter import adapter

        if not is_local_mode(arguments):
            return cls.SAGEMAKER
        return cls.SDK_LOCAL_MODE if adapter().is_local(session) else cls.DOCKER

    @property
    def is_here(self) -> bool:
        """Whether this machine runs the job."""
        return self is not Backend.SAGEMAKER


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedJob:
    """A job with its completed parameters, and its code."""

    arguments: Mapping[str, Any]
    """The parameters for ``PyTorch``, and those that only the Estimator has."""
    backend: Backend
    """The service that runs the job."""
    source: SourceCode
    """The job's code, whose directories and script are read once for all checks and the upload."""
    bundled: BundledHyperparameters
    """The hyperparameters in the code's bundle."""
    chosen: Framework | None
    """The versions of PyTorch and Python; None if they do not decide the image, or the instance type is unknown."""
    refusal: str | None
    """The SDK's reason to refuse the distribution, instance type and versions, or None."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], session: Session | None) -> CompletedJob:
        """Complete the parameters of a job: hyperparameters for the bundle, metric definitions, versions."""
        from estimators.sdk import request_values, sessions, training_images

        backend, source = Backend.of(arguments, session), SourceCode.of(arguments)
        bundled = bundle_large_hyperparameters(arguments, source)
        completed = dict(bundled.arguments)
        if backend is not Backend.SDK_LOCAL_MODE:  # which ignores them
            completed |= _metric_definitions(source, arguments.get("metric_definitions"))
        chosen = refusal = None
        if chooses_image_by_version(arguments) and (region := sessions.region(session)):
            framework = training_images.Framework.of(request_values.with_defaults(arguments), region)
            if framework.image_instance_type:
                chosen, refusal = training_images.choose_versions(framework)
                completed |= chosen.arguments
        return cls(arguments=completed, backend=backend, source=source, bundled=bundled, chosen=chosen, refusal=refusal)

    def log_choice(self, given: Mapping[str, Any]) -> None:
        """Log the versions, unless the user's parameters, `given`, have both."""
        if self.chosen is not None and not {"framework_version", "py_version"} <= given.keys():
            logger.info("using PyTorch %s on %s, the newest that fits", self.chosen.version, self.chosen.py_version)


def chooses_image_by_version(arguments: Mapping[str, Any]) -> bool:
    """Return whether the versions of PyTorch and Python decide the image, because the job names none."""
    return "image_uri" not in arguments and "training_recipe" not in arguments


def _metric_definitions(source: SourceCode, given: Any) -> dict[str, Any]:
    """Return the user's definitions with those of smddp's metric lines; {} if the code does not import smddp."""
    if not source.is_local or not source_code.imports_package(source):
        return {}
    most = aws_limits.most("metric_definitions")
    return {"metric_definitions": metric_definition.completed(given, source.modules.script.tree, most=most)}


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledHyperparameters:
    """A job's parameters with the hyperparameters that fit into the request, and the file with the others."""

    arguments: Mapping[str, Any]
    """The parameters for ``PyTorch``."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files to add to the bundle, by name."""
    names: tuple[str, ...] = ()
    """Names of the hyperparameters in the bundle."""
    can_be_variables: bool = True
    """Whether all hyperparameters together fit into environment variables and a command line."""

    @property
    def line(self) -> str | None:
        """One line about the hyperparameters in the bundle, or None if all are in the request."""
        if not self.names:
            return None
        size = sum(map(len, self.files.values()))
        only = "" if self.can_be_variables else "; too long for SM_HPS and a command line: smddp.run alone has them"
        return f"{shown_names(self.names, most=3)} in the code's bundle ({size:,} bytes){only}"


def bundle_large_hyperparameters(arguments: Mapping[str, Any], source: SourceCode) -> BundledHyperparameters:
    """Return a job's hyperparameters, divided between the request and the bundle."""
    from estimators.sdk.request_values import hyperparameter_text

    given = arguments.get("hyperparameters") or {}
    if not given or not source.is_local or not (calls_package(source, _READERS) or "image_uri" in arguments):
        return BundledHyperparameters(arguments=arguments)
    try:
        texts = {str(name): hyperparameter_text(value) for name, value in given.items()}
    except (TypeError, ValueError):  # the plan says which
        return BundledHyperparameters(arguments=arguments)
    movable = {name: text for name, text in texts.items() if text is not None and not name.startswith(_STAYS)}
    large = {name: text for name, text in movable.items() if aws_limits.is_too_large("hyperparameters", {name: text})}
    if len(texts) - len(large) > aws_limits.most("hyperparameters") - _OF_SDK:
        large = movable
    if not large:
        return BundledHyperparameters(arguments=arguments)
    content, digest = bundle_file(large)
    kept = {name: value for name, value in given.items() if str(name) not in large}
    return BundledHyperparameters(
        arguments={**arguments, "hyperparameters": {**kept, POINTER: digest}},
        files={BUNDLED_FILE: content},
        names=tuple(large),
        can_be_variables=sum(len(name) + len(text or "") for name, text in texts.items()) <= MOST_BYTES,
    )


def check_bundled(bundled: BundledHyperparameters, source: SourceCode) -> Iterator[Problem]:
    """Yield the problems of a script or image that may not read the hyperparameters in the bundle."""
    if not bundled.names or calls_package(source, _READERS):
        return
    if bundled.can_be_variables:
        found = f"too large for the request, so they travel in the bundle: {shown_names(bundled.names, most=3)}"
        remedy = "The image must start the script by smddp's own train: AWS's toolkit does not hand them on."
        yield warning("hyperparameters", found, remedy)
    else:
        found = f"have more than {MOST_BYTES:,} bytes, which no variable and no command line holds"
        yield error("hyperparameters", found, "Read them by smddp.run(main), or bring them by a channel.")
