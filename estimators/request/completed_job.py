"""A job's parameters as its request needs them: completed once, for the service that runs it, by its code and image."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from estimators import metric_definition, source_code
from estimators.checks import aws_limits
from estimators.checks.parameters import is_local_mode
from estimators.request.large_hyperparameters import BundledHyperparameters, bundle_large_hyperparameters
from estimators.source_code import SourceCode

if TYPE_CHECKING:
    from estimators.sdk.library import Session
    from estimators.sdk.training_images import Framework

logger = logging.getLogger(__name__)


class Backend(Enum):
    """The service that runs a job: decided once, by the instance type and the session."""

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
