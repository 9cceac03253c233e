"""Which of AWS's images a job gets: the versions of PyTorch and Python, chosen from the job's other parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from estimators.instances import deciding_type, for_pytorch, instance_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Everything that decides the image, and whether the image supports the distribution."""

    region: str
    """The AWS region, which decides the registry."""
    instance_type: str | None
    """The type of all hosts, or None if the job has instance groups."""
    instance_groups: list[Any] | None
    """``sagemaker.instance_group.InstanceGroup`` objects, or None if all hosts have one type."""
    distribution: Mapping[str, Any] | None
    """The SDK's dict."""
    entry_point: str | None
    """The script; some distributions take only Python."""
    version: str | None
    """PyTorch's version, or None to choose one."""
    py_version: str | None
    """Python's version, such as ``py312``, or None to choose one."""
    image_uri: str | None
    """The user's own image, whose version is not checked."""
    compiler_config: Any
    """The SDK's ``TrainingCompilerConfig``, which selects separate images."""

    @classmethod
    def of(cls, arguments: Mapping[str, Any], region: str) -> Framework:
        """Take the framework from parameters of ``PyTorch``."""
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
        """The type that decides the image: the job's type, or the first group's with GPUs, or the first group's."""
        if not self.instance_groups:
            return self.instance_type
        return deciding_type([str(group.instance_type) for group in self.instance_groups])

    @property
    def arguments(self) -> dict[str, Any]:
        """The versions, as parameters of ``PyTorch``."""
        given = {"framework_version": self.version, "py_version": self.py_version}
        return {name: value for name, value in given.items() if value is not None}
