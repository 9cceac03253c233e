"""The request that the SDK would send, built without the network.

``PyTorch.fit`` uploads the code first and looks at the rest afterwards. Here it is made to look before.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ParamValidationError
from botocore.validate import validate_parameters
from sagemaker.fw_utils import UploadedCode

from estimators.errors import EstimatorError
from estimators.sdk import v2
from estimators.sdk.quiet import without_log
from estimators.sdk.v2 import PyTorchWithoutTelemetry
from estimators.service_model import service_model

if TYPE_CHECKING:
    from estimators.sdk.v2 import Session

_BUCKET = "default-bucket"
_ROLE = "arn:aws:iam::123456789012:role/name"
_IN_GIT = frozenset({"git_config", "source_dir", "dependencies"})


class _DryRun(PyTorchWithoutTelemetry):
    code = UploadedCode(s3_prefix=f"s3://{_BUCKET}/source/sourcedir.tar.gz", script_name="script.py")

    def _stage_user_code_in_s3(self) -> UploadedCode:
        return self.code


def build(
    arguments: Mapping[str, Any],
    inputs: Any,
    *,
    job_name: str | None,
    session: Session | None,
    experiment_config: Any = None,
    code: tuple[str, str] | None = None,
) -> tuple[dict[str, Any], str | None]:
    """Return the CreateTrainingJob that the SDK would send, with buckets and roles of no account.

    Args:
        arguments: The parameters for ``PyTorch``, with versions or an image.
        inputs: The channels, as for ``PyTorch.fit``.
        job_name: The job's name, if it is given one.
        session: Where the job would be sent; None for AWS, as boto3 is configured.
        experiment_config: The experiment that the job belongs to, as for ``PyTorch.fit``.
        code: Where the containers are told that the code is, and its script there; None: in a bucket of no account.

    Returns:
        The request, empty if the SDK makes none; and why the SDK, or botocore, would not send it: None, if they would.
    """
    skipped = _IN_GIT if "git_config" in arguments else frozenset()  # the SDK would clone the repository first
    requests: list[dict[str, Any]] = []
    try:
        with without_log():
            # Copies: the SDK fills in what the user's own objects leave open.
            copied = copy.deepcopy({name: value for name, value in arguments.items() if name not in skipped})
            pytorch = v2.pytorch(copied, _offline(session or v2.session(), requests), kind=_DryRun)
            if code is not None:
                pytorch.code = UploadedCode(*code)
            pytorch.fit(copy.deepcopy(inputs), wait=False, job_name=job_name, experiment_config=experiment_config)
        shape = service_model().operation_model("CreateTrainingJob").input_shape
        assert shape is not None
        validate_parameters(requests[0], shape)
    except ParamValidationError as fault:
        return requests[0], _in_one_line(fault.kwargs["report"])
    except EstimatorError as fault:
        return {}, _in_one_line(fault.__cause__ or fault)
    except (ValueError, RuntimeError) as fault:
        return {}, _in_one_line(fault)
    except (TypeError, AttributeError, LookupError) as fault:  # it stumbled, and says little
        return {}, f"{type(fault).__name__}: {_in_one_line(fault)}"
    return requests[0], None


def _offline(session: Session, requests: list[dict[str, Any]]) -> Session:
    """Return a copy of a session that asks AWS nothing, and keeps what it would send."""
    offline = copy.copy(session)
    offline.default_bucket = lambda: _BUCKET
    offline.expand_role = lambda role: role if "/" in role else _ROLE
    offline.train = lambda **arguments: requests.append(offline.get_train_request(**arguments))
    return offline


def _in_one_line(fault: object) -> str:
    return " ".join(str(fault).split()).rstrip(".!")
