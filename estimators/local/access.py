"""Reach the local platform and nothing else: a boto3 session, variables for any AWS client, or one signed request.

None of them leads to real AWS: ~/.aws is not read, and of the caller's environment only the hosts without a proxy.

`KeptAccess` is the file of a platform's addresses and keys beside its objects on disk: the next platform there has the
same. The keys allow running code as the platform's user, so the file is read only if nobody else can have written it.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.httpsession import URLLib3Session

from estimators.local.api.signature import KeyPair
from estimators.local.chaos.chaos import PLATFORM_AGENT
from estimators.local.errors import LocalPlatformError
from estimators.local.private_directory import is_locked, keep_out_of_bundles, require_private

logger = logging.getLogger(__name__)

ACCOUNT_ID = "123456789012"
PRESIGNING = "s3v4"
"""Signature version of S3's presigned URLs: the platform knows Version 4 only, and botocore chooses Version 2 in old
regions."""

_ANSWER_SECONDS = 60
"""Time limit in seconds for an answer, as boto3's. It bounds the wait for a platform that hangs: one that has ended
refuses the connection at once, and one that gets no core or waits for its disk may answer late."""
ROLE = f"arn:aws:iam::{ACCOUNT_ID}:role/SmddpLocal"

_FILE = "access.json"


@dataclass(kw_only=True, slots=True, frozen=True)
class Access:
    """The platform's endpoints, its key pair and its region."""

    endpoint_url: str
    s3_endpoint_url: str
    """The same as `endpoint_url`, unless the storage is a separate server."""
    keys: KeyPair
    region: str

    @property
    def default_bucket(self) -> str:
        """The bucket that the SageMaker SDK would choose in this account and region."""
        return f"sagemaker-{self.region}-{ACCOUNT_ID}"

    def endpoint_of(self, service: str) -> str:
        """Return the endpoint of an AWS service, by boto3's name of the service."""
        return self.s3_endpoint_url if service == "s3" else self.endpoint_url

    def boto_session(self) -> PlatformSession:
        """Return a boto3 session whose clients and resources all talk to the local platform."""
        return PlatformSession(self)

    def client_environment(self, directory: Path, *, bypasses: Iterable[str] = ()) -> dict[str, str]:
        """Return variables for a program on this machine that uses an AWS SDK or the AWS CLI.

        ``directory`` contains the files of `write_files`. ``bypasses`` are more hosts to reach without a proxy.
        """
        return {
            **self.container_environment(bypasses=bypasses),
            "AWS_PROFILE": "default",
            "AWS_DEFAULT_PROFILE": "default",
            "AWS_CONFIG_FILE": str(directory / "aws-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(directory / "aws-credentials"),
        }

    def container_environment(self, *, bypasses: Iterable[str] = ()) -> dict[str, str]:
        """Return variables for a program that uses an AWS SDK and has no configuration files.

        ``bypasses`` are more hosts to reach without a proxy.
        """
        own = {urlsplit(self.endpoint_url).hostname or "localhost", "127.0.0.1", "localhost"}
        no_proxy = ",".join(sorted({*own, *bypasses}))
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ENDPOINT_URL_S3": self.s3_endpoint_url,
            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
            "AWS_ACCESS_KEY_ID": self.keys.access_key,
            "AWS_SECRET_ACCESS_KEY": self.keys.secret_key,
            "AWS_SESSION_TOKEN": "",
            "AWS_SECURITY_TOKEN": "",
            "AWS_DEFAULT_REGION": self.region,
            "AWS_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
            "no_proxy": no_proxy,
            "NO_PROXY": no_proxy,
        }

    def sdk_environment(self, directory: Path) -> dict[str, str]:
        """Return variables for the SageMaker SDK, which does not read AWS_ENDPOINT_URL everywhere."""
        return {
            "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(directory / "sagemaker.yaml"),
            "SAGEMAKER_USER_CONFIG_OVERRIDE": str(directory / "sagemaker.yaml"),
            "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
            "SAGEMAKER_VALIDATE_ROLE": "false",
        }

    def environment(self, directory: Path) -> dict[str, str]:
        """Return variables for any program on this machine, such as an unmodified submit script."""
        clients = self.client_environment(directory, bypasses=bypassed_hosts(os.environ))
        return {**clients, **self.sdk_environment(directory)}

    def write_files(self, directory: Path) -> None:
        """Write the files that these variables name, for this user alone."""
        keys = f"aws_access_key_id = {self.keys.access_key}\naws_secret_access_key = {self.keys.secret_key}\n"
        files = {
            "aws-config": f"[default]\nregion = {self.region}\ns3 =\n    signature_version = {PRESIGNING}\n",
            "aws-credentials": f"[default]\n{keys}",
            "sagemaker.yaml": (
                "SchemaVersion: '1.0'\n"
                "SageMaker:\n"
                "  PythonSDK:\n"
                "    Modules:\n"
                "      TelemetryOptOut: true\n"
                "      Session:\n"
                f"        DefaultS3Bucket: {self.default_bucket}\n"
            ),
        }
        for name, text in files.items():
            (directory / name).touch(mode=0o600)
            (directory / name).write_text(text)


def bypassed_hosts(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the hosts that an environment excludes from its proxies."""
    listed = ",".join(environment.get(name, "") for name in ("no_proxy", "NO_PROXY"))
    return frozenset(host.strip() for host in listed.split(",") if host.strip())


class PlatformSession(boto3.Session):
    """A boto3 session whose clients reach one local platform and nothing else."""

    ends_with_program = True
    """The platform's jobs end with this program; jobs on AWS go on."""
    ends_with_block = False
    """Whether a ``with`` block ends the platform, and logs what happens to its jobs."""
    kept_in: str | None = None
    """The directory in which a later platform finds the jobs again; None if they end with this platform."""
    role_prefix = ROLE.removesuffix("SmddpLocal")
    """Prefix of the ARN of a role that is known by name. No role is assumed, so the role need not exist."""
    runs_in_this_python = False
    """Whether each job runs in this Python's environment, and in no image."""
    hosts_are_processes = False
    """Whether the hosts of a job are processes of this machine, and neither containers nor nodes of Slurm."""

    def __init__(self, access: Access) -> None:
        super().__init__(botocore_session=_LocalSession(access), region_name=access.region)
        self._access = access

    def await_change(self, job_name: str, transitions: int, seconds: float) -> None:
        """Return once a job has more secondary statuses than ``transitions``, or after ``seconds``.

        All lines of a job's log can be read once the job has ended.
        """
        request = {"TrainingJobName": job_name, "Transitions": transitions, "Seconds": seconds}
        try:
            ask(self._access, "AwaitChange", request, service="SmddpLocal")
        except (BotoCoreError, ClientError, ValueError):  # the next request to the job tells what is wrong
            time.sleep(seconds)


class _LocalSession(botocore.session.Session):
    """A botocore session with fixed endpoints, which reads no environment variable and no file.

    The endpoint is forced here and not in boto3's session, because every client is made here: boto3's clients and
    resources, and clients of code such as the SageMaker SDK that builds an endpoint itself.
    """

    def __init__(self, access: Access) -> None:
        variables = {
            name: (in_file, None, default, conversion)
            for name, (in_file, _, default, conversion) in self.SESSION_VARIABLES.items()
        }
        nowhere = (None, None, os.devnull, None)
        super().__init__(session_vars={**variables, "config_file": nowhere, "credentials_file": nowhere})
        self._access = access
        self.set_credentials(access.keys.access_key, access.keys.secret_key)
        self.set_config_variable("region", access.region)
        self.set_default_client_config(Config(proxies={}))

    def get_scoped_config(self) -> dict[str, Any]:
        """Return the settings in place of a configuration file's."""
        return {"s3": {"signature_version": PRESIGNING}}

    def create_client(  # type: ignore[override]
        self,
        service_name: str,
        region_name: str | None = None,
        api_version: str | None = None,
        use_ssl: bool = True,
        verify: bool | str | None = None,
        endpoint_url: str | None = None,  # noqa: ARG002 - wherever the caller wanted to go, it is not AWS
        **options: Any,
    ) -> Any:
        return super().create_client(
            service_name,
            region_name,
            api_version,
            use_ssl,
            verify,
            self._access.endpoint_of(service_name),
            **options,
        )


def ask(access: Access, operation: str, request: Mapping[str, Any], *, service: str = "SageMaker") -> dict[str, Any]:
    """Call an operation of the platform by one signed request, and return its answer.

    Making a SageMaker client would take a second.

    ``service`` is the prefix of the operation's name; the platform's own operations have ``SmddpLocal``. Raise
    ClientError if the platform refuses, BotoCoreError if nobody answers, ValueError if another program answers.
    """
    message = AWSRequest(
        method="POST",
        url=access.endpoint_url,
        data=json.dumps(request).encode(),
        headers={
            "Content-Type": "application/x-amz-json-1.1",
            "User-Agent": PLATFORM_AGENT,
            "X-Amz-Target": f"{service}.{operation}",
        },
    )
    keys = Credentials(access.keys.access_key, access.keys.secret_key)
    SigV4Auth(keys, "sagemaker", access.region).add_auth(message)
    response = URLLib3Session(proxies={}, timeout=_ANSWER_SECONDS).send(message.prepare())
    answer = json.loads(response.content or b"{}")
    if not isinstance(answer, dict):
        raise ValueError(f"{access.endpoint_url} is not a local platform: it answers no JSON object")
    if response.status_code == 200:
        return answer
    if not {"__type", "message"} <= answer.keys():
        raise ValueError(f"{access.endpoint_url} is not a local platform: it answers {response.status_code}")
    raise ClientError({"Error": {"Code": answer["__type"], "Message": answer["message"]}}, operation)


def answers(access: Access) -> bool:
    """Return whether a platform answers at this address and accepts these keys."""
    try:
        return "TrainingJobSummaries" in ask(access, "ListTrainingJobs", {"MaxResults": 1})
    except (BotoCoreError, ClientError, ValueError):  # nobody, another program, or another platform
        return False


class KeptAccess:
    """The access file of a platform, and the directory of the files that a client needs."""

    def __init__(self, platform: Path) -> None:
        """Point at the access files in a platform's directory; nothing is read or made yet."""
        self.directory = platform / "access"

    def read(self) -> Access | None:
        """Return the addresses and keys of the platform that runs or last ran here; None if no platform ever ran here.

        Raise LocalPlatformError if another user could have written the file, or it is malformed.
        """
        path = self.directory / _FILE
        try:
            for each in (self.directory, path):
                require_private(each)
            fields = json.loads(path.read_text())
            return Access(**{**fields, "keys": KeyPair(**fields["keys"])})
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = error if isinstance(error, OSError | ValueError) else "it holds no addresses and keys of a platform"
            raise LocalPlatformError(f"{path} can't be read: {why}. Remove it: new keys are made then.") from error

    def read_running(self) -> Access | None:
        """Return the addresses and keys of the platform that runs here now; None if none does. Raise as `read` does.

        An answer alone is not proof, because another user's program could give it: the objects must be locked, too.
        """
        access = self.read()
        runs = access is not None and is_locked(self.directory.parent / "storage") and answers(access)
        return access if runs else None

    def require_running(self) -> Access:
        """Return the addresses and keys of the platform that runs here now; raise LocalPlatformError if none does."""
        access = self.read_running()
        if access is None:
            platform = self.directory.parent
            quoted = shlex.quote(str(platform))
            raise LocalPlatformError(
                f"no platform runs on {platform}: start one with smddp local up --directory {quoted}"
            )
        return access

    def write(self, access: Access) -> None:
        """Replace the access file in one step; only this user can read it."""
        partial = self.directory / f"{_FILE}.{os.getpid()}"
        partial.touch(mode=0o600)
        partial.write_text(json.dumps(asdict(access)))
        partial.replace(self.directory / _FILE)

    def make(self) -> None:
        """Make the directory; raise LocalPlatformError if an existing one is not this user's alone."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        require_private(self.directory)
        keep_out_of_bundles(self.directory)


def port_again(endpoint_url: str) -> int:
    """Return the port of an endpoint if it is free on 127.0.0.1; else warn, and return 0, which means any port."""
    port = urlsplit(endpoint_url).port or 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server does: old connections may linger
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            logger.warning(
                "another program listens on port %d now, where this platform was: shells that were told so must be "
                "told anew, by smddp local env",
                port,
            )
            return 0
    return port
