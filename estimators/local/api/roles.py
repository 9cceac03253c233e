"""IAM's roles by name: GetRole finds a role of any name, as a job takes any RoleArn.

Nothing here checks the permissions of a role. The SDK turns the name of a role into its ARN by GetRole.
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlencode

from estimators.local.api.front import OPERATION, ask
from estimators.local.api.operation import ApiOperation
from estimators.service_model import service_model, violations

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

logger = logging.getLogger(__name__)

_TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


class RolesByName:
    """A WSGI application that creates a role in `inner` at its first GetRole, unless it has been deleted."""

    def __init__(self, inner: WSGIApplication) -> None:
        self._inner = inner
        self._deleted: set[str] = set()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request that `OfferedOperations` let through."""
        operation: ApiOperation = environ[OPERATION]
        if operation.service != "iam" or operation.name not in ("GetRole", "DeleteRole"):
            return self._inner(environ, start_response)
        form = environ["wsgi.input"].read()
        name = parse_qs(form.decode("latin-1")).get("RoleName", [""])[0]
        status, headers, content = self._ask(environ, form)
        if operation.name == "DeleteRole":
            self._deleted.add(name)
        elif status.startswith("404") and name not in self._deleted and _is_name(name):
            asked = {
                "Action": "CreateRole",
                "RoleName": name,
                "AssumeRolePolicyDocument": json.dumps(_TRUST),
                "Version": "2010-05-08",
            }
            if self._ask(environ, urlencode(asked).encode())[0].startswith("200"):
                logger.info("made the IAM role %s, which a job is to have", name)
            status, headers, content = self._ask(environ, form)
        start_response(status, headers)
        return [content]

    def _ask(self, environ: WSGIEnvironment, form: bytes) -> tuple[str, list[tuple[str, str]], bytes]:
        return ask(self._inner, {**environ, "CONTENT_LENGTH": str(len(form)), "wsgi.input": io.BytesIO(form)})


def _is_name(text: str) -> bool:
    """Return whether IAM allows this name of a role."""
    shape = service_model("iam").operation_model("CreateRole").input_shape
    assert shape is not None
    return not any(violations(shape.members["RoleName"], text))
