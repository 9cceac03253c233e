"""What a job file of OpenPAI must be, as JSON Schema.

Written after the protocol's specification, https://github.com/microsoft/openpai-protocol (schemas/v2/schema.yaml, MIT
licence), and as strict about unknown names as the server of https://github.com/microsoft/pai is, which takes none.
"""

from __future__ import annotations

from typing import Any

_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]+$", "maxLength": 255}
_TEXT = {"type": "string"}
_LABEL = "^[a-zA-Z_][a-zA-Z0-9_]*$"


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _whole(minimum: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum}


def _by_label(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "patternProperties": {_LABEL: schema}, "minProperties": 1, "additionalProperties": False}


_HEAD = {
    "protocolVersion": {"enum": [2, "2"]},
    "name": _NAME,
    "version": {"type": ["string", "number"]},
    "contributor": _TEXT,
    "description": _TEXT,
}

_TASK_ROLE = _object(
    ["dockerImage", "resourcePerInstance", "commands"],
    instances=_whole(1),
    completion=_object([], minFailedInstances=_whole(-1), minSucceededInstances=_whole(-1)),
    taskRetryCount=_whole(0),
    dockerImage=_TEXT,
    data=_TEXT,
    output=_TEXT,
    script=_TEXT,
    extraContainerOptions=_object([], shmMB=_whole(1), infiniband={"type": "boolean"}),
    resourcePerInstance=_object(
        ["cpu", "memoryMB", "gpu"], cpu=_whole(1), memoryMB=_whole(1), gpu=_whole(0), ports=_by_label(_whole(1))
    ),
    commands={"type": "array", "items": _TEXT, "minItems": 1},
)

SCHEMA: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    **_object(
        ["protocolVersion", "name", "type", "prerequisites", "taskRoles"],
        **_HEAD,
        type={"const": "job"},
        prerequisites={
            "type": "array",
            "minItems": 1,
            "items": {
                "oneOf": [
                    _object(["name", "type", "uri"], **_HEAD, type={"enum": ["script", "output"]}, uri=_TEXT),
                    _object(
                        ["name", "type", "uri"],
                        **_HEAD,
                        type={"const": "data"},
                        uri={"type": "array", "items": _TEXT, "minItems": 1},
                    ),
                    _object(
                        ["name", "type", "uri"],
                        **_HEAD,
                        type={"const": "dockerimage"},
                        uri=_TEXT,
                        auth=_object([], username=_TEXT, password=_TEXT, registryuri=_TEXT),
                    ),
                ]
            },
        },
        parameters={"type": "object"},
        secrets={"type": "object"},
        jobRetryCount=_whole(0),
        taskRoles=_by_label(_TASK_ROLE),
        deployments={"type": "array", "minItems": 1},
        defaults={"type": "object"},
        extras={"type": "object"},
    ),
}
