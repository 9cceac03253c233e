"""Which of AWS's images a job gets: the versions of PyTorch and Python, chosen by what else the job asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimators.instances import deciding_type, for_pytorch, instance_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """All that decides an image, and whether a distribution is supported on it."""

    region: str
    """The AWS region, which decides the registry."""
    instance_type: str | None
    """The hosts, if they are all the same."""
    instance_groups: list[Any] | None
    """``sagemaker.instance_group.InstanceGroup`` objects, if they are not."""
    distribution: Mapping[str, Any] | None
    """The SDK's dict."""
    entry_point: str | None
    """The script; some distributions take only Python."""
    version: str | None
    """Of PyTorch; None leaves the choice open."""
    py_version: str | None
    """Of Python, as ``py312``; None leaves the choice open."""
    image_uri: str | None
    """An image of the user's own, for which no version is checked."""
    compiler_config: Any
    """The SDK's ``TrainingCompilerConfig``, which has images of its own."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], region: str) -> Framework:
        """Return what parameters of ``PyTorch`` say about it."""
        distribution = arguments.get("distribution")
        return cls(
            region=region,
            instance_type=for_pytorch(arguments).get("instance_type"),
            instance_groups=list(instance_groups(arguments)) or None,
            distribution=distribution if isinstance(distribution, Mapping) else None,
            entry_point=arguments.get("entry_point"),
            version=arguments.get("framework_version"),
            py_version=arguments.get("py_version"),
            image_uri=arguments.get("image_uri"),
            compiler_config=arguments.get("compiler_config"),
        )

    @property
    def image_instance_type(self) -> str | None:
        """The type that decides the image: of the job, or of its first group with GPUs, or of its first."""
        if not self.instance_groups:
            return self.instance_type
        return deciding_type([str(group.instance_type) for group in self.instance_groups])

    @property
    def arguments(self) -> dict[str, Any]:
        """Its versions, as parameters of ``PyTorch``."""
        given = {"framework_version": self.version, "py_version": self.py_version}
        return {name: value for name, value in given.items() if value is not None}
