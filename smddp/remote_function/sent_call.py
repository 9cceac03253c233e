"""The description of a remote call in the job's request: one environment variable.

How the call is protected:

1. The request comes from SageMaker's API; write access to the bucket does not suffice to change it.
2. It contains the digest of the arguments' document, so changed arguments are refused.
3. It contains the key of an HMAC. The job signs the result's document with it, so a changed result is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from smddp.errors import RemoteFunctionError

CALL_VARIABLE = "SMDDP_REMOTE_CALL"
"""The variable, set in each process of the job."""

Serializer = Literal["safetensors", "cloudpickle"]
"""The format of values: safetensors and JSON, or a pickle, which runs code when it is loaded."""
SERIALIZERS: tuple[Serializer, ...] = get_args(Serializer)

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The version of this Python."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentCall:
    """A call of a function, as the job's request describes it."""

    function: str
    """``module:qualified.name``; for a pickled function only a name for messages."""
    serializer: Serializer
    python: str
    """The sender's version of Python, such as ``3.11``; pickled code runs only on the same version."""
    digest: str
    """SHA-256 of the arguments' document, 64 hexadecimal digits."""
    result_key: str
    """The key of the result's HMAC, 64 hexadecimal digits."""

    def __post_init__(self) -> None:
        if self.serializer not in SERIALIZERS:
            raise RemoteFunctionError(f"serializer={self.serializer!r}: give {' or '.join(map(repr, SERIALIZERS))}")
        if not all(isinstance(each, str) for each in (self.function, self.python)):
            raise RemoteFunctionError("its function and version of Python are no texts")
        if not all(isinstance(each, str) and _DIGEST.fullmatch(each) for each in (self.digest, self.result_key)):
            raise RemoteFunctionError("its digest or its key has not 64 hexadecimal digits")

    @classmethod
    def of(cls, function: str, serializer: Serializer, arguments: bytes) -> SentCall:
        """Return a new call of a function with the arguments in this document."""
        return cls(
            function=function,
            serializer=serializer,
            python=PYTHON,
            digest=hashlib.sha256(arguments).hexdigest(),
            result_key=secrets.token_hex(32),
        )

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> SentCall:
        """Return the call in an environment's variable; raise RemoteFunctionError if it is unset or invalid."""
        if CALL_VARIABLE not in environment:
            raise RemoteFunctionError(
                f"{CALL_VARIABLE} is not set: this is no job of a remote function. Send one by estimators.remote."
            )
        try:
            return cls(**json.loads(environment[CALL_VARIABLE]))
        except (ValueError, TypeError) as error:
            raise RemoteFunctionError(f"{CALL_VARIABLE} describes no call: {error}. Send the job anew.") from error

    def to_text(self) -> str:
        """Return the variable's value."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    def check_arguments(self, document: bytes) -> None:
        """Raise RemoteFunctionError if a document does not contain the sent arguments."""
        if not hmac.compare_digest(hashlib.sha256(document).hexdigest(), self.digest):
            raise RemoteFunctionError("the arguments are not those that were sent: the code's archive was changed")

    def sign(self, document: bytes) -> str:
        """Return the HMAC of a result's document: SHA-256, 64 hexadecimal digits."""
        return hmac.new(bytes.fromhex(self.result_key), document, "sha256").hexdigest()

    def check_result(self, document: bytes, signature_file: Path) -> None:
        """Raise RemoteFunctionError unless the job's own code has written and signed the result."""
        try:
            signature = signature_file.read_bytes()[:64]
        except OSError as error:
            raise RemoteFunctionError(f"the result has no signature: {error.strerror}") from error
        if not hmac.compare_digest(signature, self.sign(document).encode()):
            raise RemoteFunctionError(
                "the result is not the one that the job has written: its archive in S3 was changed. It was not loaded"
            )
