"""Build the SDK's request without the network.

``PyTorch.fit`` uploads the code first and checks the rest later. This module makes it check first.
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
    """Return the SDK's CreateTrainingJob and None, or the reason why the SDK or botocore refuses it.

    AWS is not asked for the account or the role. The role's account is the session's, because CreateTrainingJob accepts
    no other. `code` is the S3 URI and script for the containers. The request is empty if the SDK makes none.
    """
    try:
        with without_log():
            # Copies, because the SDK fills in defaults in the user's own objects.
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
    except (TypeError, AttributeError, LookupError) as fault:  # an internal error of the SDK, with a short message
        return {}, f"{type(fault).__name__}: {_in_one_line(fault)}"
    return request, None


def _offline(session: Session, role: object) -> Session:
    """Return a copy of a session that sends no request to AWS."""
    offline = copy.copy(session)
    found = _ACCOUNT.match(str(role or configured_role(session)))
    bucket = named_bucket(session) or f"sagemaker-{session.boto_region_name}-{found[1] if found else NO_ACCOUNT}"
    offline.default_bucket = lambda: bucket
    offline.expand_role = lambda role: role if "/" in role else f"arn:aws:iam::{NO_ACCOUNT}:role/{role}"
    return offline


def _in_one_line(fault: object) -> str:
    return " ".join(str(fault).split()).rstrip(".!")
