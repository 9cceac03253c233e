"""Hyperparameters that are too large for a request are sent as a file in the code's bundle.

1. The API takes 100 of them, of 2,500 characters each.
2. AWS's training toolkit does not know the file: in its images only smddp reads these hyperparameters.
3. So a job whose script does not use smddp is refused, unless it has its own image.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from estimators.checks import aws_limits
from estimators.errors import Problem, error, warning
from estimators.source_code import PACKAGE, SourceCode, calls_package
from smddp.job.hyperparameters.sources import BUNDLED_FILE, MOST_BYTES, POINTER, bundle_file

logger = logging.getLogger(__name__)


_OF_SDK = 12
"""The most hyperparameters that the SDK and we add: the launcher's, the job's name and region, the code's URI."""
_STAYS = "sagemaker_"
"""Prefix of the hyperparameters that the platform itself reads: they always stay in the request."""
_READERS = frozenset(
    {
        *(f"{PACKAGE}.run", f"{PACKAGE}.Job.detect", f"{PACKAGE}.hydra.main", f"{PACKAGE}.job.hyperparameters.load"),
        *("run", "Job.detect", "hyperparameters.load"),
    }
)
"""The calls by which a script reads hyperparameters through smddp."""


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
        shown = ", ".join(self.names[:3]) + (f" and {len(self.names) - 3} more" if len(self.names) > 3 else "")
        size = sum(map(len, self.files.values()))
        only = "" if self.can_be_variables else "; too long for SM_HPS and a command line: smddp.run alone has them"
        return f"{shown} in the code's bundle ({size:,} bytes){only}"


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
        found = f"too large for the request, so they travel in the bundle: {', '.join(bundled.names[:3])}"
        remedy = "The image must start the script by smddp's own train: AWS's toolkit does not hand them on."
        yield warning("hyperparameters", found, remedy)
    else:
        found = f"have more than {MOST_BYTES:,} bytes, which no variable and no command line holds"
        yield error("hyperparameters", found, "Read them by smddp.run(main), or bring them by a channel.")
