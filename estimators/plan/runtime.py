"""The versions of PyTorch and Python in a job's runtime, as far as known before it runs, and on this machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from estimators.sdk.library import Session

_AWS_TAG = re.compile(
    r"\d+\.dkr\.ecr\.[^/]+/pytorch-training(?:-\w+)?:(?P<torch>\d+\.\d+)[^-]*-(?:.*-)?py3(?P<python>\d+)(?:-|$)"
)
"""AWS's training images name the versions of PyTorch and Python in their tags; nothing else is known of an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What runs the script of a job."""

    image: str | None
    """The image in the request, or None for an algorithm of the Marketplace."""
    torch: str | None
    """PyTorch's major and minor version, or None if unknown."""
    python: str | None
    """Python's major and minor version, or None if unknown."""
    is_here: bool
    """Whether this Python runs the job in place of the image: on a ``LocalSageMaker`` without an executor."""

    @classmethod
    def of(cls, image: str | None, session: Session) -> Runtime:
        """Return the runtime of a job whose request names an image."""
        from estimators.sdk import sessions

        if sessions.runs_in_this_python(session):
            torch, python = versions_here()
            return cls(image=image, torch=torch, python=python, is_here=True)
        torch, by_tag = versions_of(image)
        return cls(image=image, torch=torch, python=by_tag, is_here=False)

    # Not a problem of the plan: the machine that sends a job seldom has the versions of the job's image, and a warning
    # at each fit() would hide the warnings that matter.
    def lines(self) -> Iterator[tuple[str, str]]:
        """Yield the image, and its versions, with this machine's if they differ, as labels and readable values."""
        yield "image", self.image or "that of the algorithm"
        here = versions_here()
        if self.is_here:
            yield "versions", f"{named(self.torch, self.python)} of this machine, which runs the job without the image"
        elif self.torch is None:
            yield "versions", "not known of this image"
        elif here == (self.torch, self.python):
            yield "versions", f"{named(self.torch, self.python)} by the image's tag"
        else:
            yield "versions", f"{named(self.torch, self.python)} by the image's tag; here {named(*here)}"


def versions_of(image: str | None) -> tuple[str | None, str | None]:
    """Return the major and minor versions of PyTorch and Python in an image's tag, None for an image not of AWS."""
    tag = _AWS_TAG.match(image or "")
    return (None, None) if tag is None else (tag["torch"], f"3.{tag['python']}")


def torch_here() -> str | None:
    """Return the version of the installed PyTorch, None if absent."""
    try:
        return version("torch")
    except PackageNotFoundError:
        return None


def versions_here() -> tuple[str | None, str]:
    """Return the major and minor versions of the installed PyTorch, None if absent, and of this Python."""
    torch = torch_here()
    named_torch = None if torch is None else ".".join(torch.split(".")[:2])
    return named_torch, f"{sys.version_info[0]}.{sys.version_info[1]}"


def named(torch: str | None, python: str | None) -> str:
    """Return two versions in words."""
    return f"{f'PyTorch {torch}' if torch else 'no PyTorch'}, Python {python}"
