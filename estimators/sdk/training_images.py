"""AWS's PyTorch training images: the versions that the SDK has, chosen by the job's other parameters, and the modules.

The versions are asked of the SDK, so a newer SDK needs no change here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from packaging.version import Version

from estimators.instances import deciding_type, for_pytorch, instance_groups
from estimators.sdk.library import fw_utils, image_uris, instance_types_gpu_info
from estimators.sdk.quiet import without_log

_NAMED_MODULES = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "torchtnt", "fastai", "accelerate", "s3torchconnector"),
        *("numpy", "scipy", "pandas", "sklearn", "numba", "h5py", "shap", "spacy", "thinc", "blis"),
        *("seaborn", "bokeh", "plotly", "imageio", "PIL", "cv2"),
        *(
            "Cython",
            "pybind11",
            "mpi4py",
            "psutil",
            "tqdm",
            "click",
            "yaml",
            "packaging",
            "setuptools",
            "pkg_resources",
        ),
        *("pip", "requests", "urllib3", "idna", "charset_normalizer", "cryptography", "OpenSSL", "fsspec"),
        *("IPython", "parso", "cloudpickle", "boto3", "awscli"),
        *("sagemaker", "smexperiments", "smclarify", "sagemaker_training", "sagemaker_pytorch_container"),
    }
)
_REQUIRED_MODULES = frozenset(
    {
        *("typing_extensions", "sympy", "networkx", "jinja2", "filelock"),  # torch
        *("huggingface_hub", "safetensors"),  # accelerate
        *("matplotlib", "fastcore", "fastprogress"),  # fastai
        *("botocore", "s3transfer", "jmespath", "dateutil", "six"),  # boto3
        *("pytz", "joblib", "threadpoolctl", "llvmlite", "certifi", "mpl_toolkits"),  # pandas, scikit-learn and others
        *("attr", "google", "jsonschema"),  # sagemaker
    }
)
KNOWN_MODULES = _NAMED_MODULES | _REQUIRED_MODULES
"""Top-level modules that a script may import in each of these images, as far as they are known: no image is pulled.

They are what the public Dockerfiles of PyTorch 2.0 to 2.8 name (github.com/aws/deep-learning-containers,
``pytorch/training/docker``), and what those packages require in turn. An image may have more."""


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


_TABLES = ("pytorch", "pytorch-neuron")
"""The SDK's tables of training images: for CPUs and GPUs, and for Trainium."""


_found: dict[str, str] = {}
"""The SDK's answers, by the arguments."""


def found_uri(**asked: Any) -> str:
    """Return the SDK's ``image_uris.get_training_image_uri``, cached; raise ValueError if there is no image.

    For each answer the SDK reads the table of all AWS endpoints, and one ``fit()`` asks seven times.
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
    """Return the image of a job, or raise ValueError if the SDK has none."""
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
    """Return the SDK's reason to refuse a combination of distribution, instance type and version, or None."""
    try:
        with without_log():
            validated_distribution(framework)
            image_uri(framework)
    except (ValueError, KeyError) as fault:
        return " ".join(str(fault).split()).rstrip(".")
    except (AttributeError, TypeError):
        return None  # the SDK fails on a value of a wrong type, which our own checks report
    return None


def choose_versions(framework: Framework) -> tuple[Framework, str | None]:
    """Fill in the open versions with the newest that the SDK accepts; also return its refusal, or None.

    A refusal means that the SDK refuses every choice.
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
    """Return the versions of PyTorch with images in the SDK, each with its Python version; newest first."""
    known = set()
    for name in _TABLES:
        table = image_uris.config_for_framework(name)["training"]
        full = {version: version for version in table["versions"]}
        for version, meant in {**table["version_aliases"], **full}.items():
            known |= {(version, py_version) for py_version in table["versions"][meant]["py_versions"]}
    return tuple(sorted(known, key=_newness, reverse=True))


def _newness(pair: tuple[str, str]) -> tuple[Version, int, int]:
    """Return a sort key for versions, which prefers the exact "2.8.0" to "2.8"."""
    version, py_version = pair
    return Version(version), len(version), int(py_version.removeprefix("py"))


def validated_distribution(framework: Framework) -> dict[str, Any]:
    """Return the distribution as the SDK has checked and completed it, empty if absent; raise ValueError if refused."""
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
    """Return the distribution as ``PyTorch`` passes it to the SDK's checks."""
    renamed = dict(distribution)
    if "pytorchddp" in renamed:
        renamed["smdistributed"] = {"dataparallel": renamed.pop("pytorchddp")}
    return renamed


def data_parallel_instance_types() -> tuple[str, ...]:
    """Return the instance types on which SMDDP runs according to the SDK, which lists but never checks them."""
    return tuple(fw_utils.SM_DATAPARALLEL_SUPPORTED_INSTANCE_TYPES)


def gpus_of(instance_type: str, region: str) -> int | None:
    """Return the number of GPUs of an instance type, or None if the SDK does not know it."""
    count: int | None = instance_types_gpu_info.retrieve(region).get(instance_type, {}).get("Count")
    return count
