"""What a job's request says about the call that it was sent for: one variable of its environment.

The request comes from SageMaker's API, and nobody who can write to the bucket can change it. So it vouches for what
lies there: by the digest of the arguments, and by the key of the result's authentication code.
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
"""The variable; it is set in each process of the job."""

Serializer = Literal["safetensors", "cloudpickle"]
"""How values travel: as safetensors and JSON, or as a pickle, which runs code when it is loaded."""
SERIALIZERS: tuple[Serializer, ...] = get_args(Serializer)

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SentCall:
    """A call of a function, as the job's request has it."""

    function: str
    """``module:qualified.name``; of a pickled function only what to call it."""
    serializer: Serializer
    python: str
    """The sender's version of Python, such as ``3.11``: pickled code is of one version."""
    digest: str
    """SHA-256 of the document of the arguments, 64 hexadecimal digits."""
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
        """Return the call of a function with arguments, by their document."""
        return cls(
            function=function,
            serializer=serializer,
            python=PYTHON,
            digest=hashlib.sha256(arguments).hexdigest(),
            result_key=secrets.token_hex(32),
        )

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> SentCall:
        """Return the call that an environment's variable describes.

        Raises:
            RemoteFunctionError: It is not set, or describes none.
        """
        if CALL_VARIABLE not in environment:
            raise RemoteFunctionError(
                f"{CALL_VARIABLE} is not set: this is no job of a remote function. Send one by estimators.remote."
            )
        try:
            return cls(**json.loads(environment[CALL_VARIABLE]))
        except (ValueError, TypeError) as error:
            raise RemoteFunctionError(f"{CALL_VARIABLE} describes no call: {error}. Send the job anew.") from error

    def to_text(self) -> str:
        """Return the value of the variable."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    def check_arguments(self, document: bytes) -> None:
        """See that a document is that of the arguments.

        Raises:
            RemoteFunctionError: It is another one.
        """
        if not hmac.compare_digest(hashlib.sha256(document).hexdigest(), self.digest):
            raise RemoteFunctionError("the arguments are not those that were sent: the code's archive was changed")

    def sign(self, document: bytes) -> str:
        """Return the HMAC of a result's document: SHA-256, 64 hexadecimal digits."""
        return hmac.new(bytes.fromhex(self.result_key), document, "sha256").hexdigest()

    def check_result(self, document: bytes, signature_file: Path) -> None:
        """See that the job's own code has written a result.

        Raises:
            RemoteFunctionError: It was somebody else.
        """
        try:
            signature = signature_file.read_bytes()[:64]
        except OSError as error:
            raise RemoteFunctionError(f"the result has no signature: {error.strerror}") from error
        if not hmac.compare_digest(signature, self.sign(document).encode()):
            raise RemoteFunctionError(
                "the result is not the one that the job has written: its archive in S3 was changed. It was not loaded"
            )


PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""This Python's version."""
