"""The request that the SDK would send, built without the network.

``PyTorch.fit`` uploads the code first and looks at the rest afterwards. Here it is made to look before.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ParamValidationError
from botocore.validate import validate_parameters

from estimators.errors import EstimatorError
from estimators.sdk.adapter import adapter
from estimators.sdk.placeholders import CODE, NO_ACCOUNT
from estimators.sdk.quiet import without_log
from estimators.sdk.request_values import without_repository
from estimators.sdk.sessions import configured_role, named_bucket
from estimators.sdk.sessions import session as new_session
from estimators.service_model import service_model

if TYPE_CHECKING:
    from estimators.sdk.library import Session

_ACCOUNT = re.compile(r"arn:[a-z-]+:iam::(\d{12}):")


def build(
    arguments: Mapping[str, Any],
    inputs: Any,
    *,
    job_name: str | None,
    session: Session | None,
    experiment_config: Any = None,
    code: tuple[str, str] = CODE,
) -> tuple[dict[str, Any], str | None]:
    """Return the CreateTrainingJob that the SDK would send, without asking AWS for the account or the role.

    The role's own account is the session's: CreateTrainingJob takes no role of another.

    Args:
        arguments: The parameters for ``PyTorch``, with versions or an image.
        inputs: The channels, as for ``PyTorch.fit``.
        job_name: The job's name, if it is given one.
        session: Where the job would be sent; None for AWS, as boto3 is configured.
        experiment_config: The experiment that the job belongs to, as for ``PyTorch.fit``.
        code: Where the containers are told that the code is, and its script there; by default in no account.

    Returns:
        The request, empty if the SDK makes none; and why the SDK, or botocore, would not send it: None, if they would.
    """
    try:
        with without_log():
            # Copies: the SDK fills in what the user's own objects leave open.
            request = adapter().request(
                copy.deepcopy(without_repository(arguments)),
                copy.deepcopy(inputs),
                session=_offline(session or new_session(), arguments.get("role")),
                job_name=job_name,
                experiment_config=experiment_config,
                code=code,
            )
        shape = service_model().operation_model("CreateTrainingJob").input_shape
        assert shape is not None
        validate_parameters(request, shape)
    except ParamValidationError as fault:
        return request, _in_one_line(fault.kwargs["report"])
    except EstimatorError as fault:
        return {}, _in_one_line(fault.__cause__ or fault)
    except (ValueError, RuntimeError) as fault:
        return {}, _in_one_line(fault)
    except (TypeError, AttributeError, LookupError) as fault:  # it stumbled, and says little
        return {}, f"{type(fault).__name__}: {_in_one_line(fault)}"
    return request, None


def _offline(session: Session, role: object) -> Session:
    """Return a copy of a session that asks AWS nothing."""
    offline = copy.copy(session)
    found = _ACCOUNT.match(str(role or configured_role(session)))
    bucket = named_bucket(session) or f"sagemaker-{session.boto_region_name}-{found[1] if found else NO_ACCOUNT}"
    offline.default_bucket = lambda: bucket
    offline.expand_role = lambda role: role if "/" in role else f"arn:aws:iam::{NO_ACCOUNT}:role/{role}"
    return offline


def _in_one_line(fault: object) -> str:
    return " ".join(str(fault).split()).rstrip(".!")
