"""One job's CreateTrainingJob: built once, without the network; then checked; then completed.

1. The SDK builds the request on a session that sends nothing. The few values that only AWS and the upload decide are
   placeholders: the code's URI, the account in the default bucket's name, and the ARN of a role known by its name.
2. Checks, price and policies read `JobRequest.members` and change nothing.
3. `complete` uploads the code, and puts in these values and nothing else. So what was checked is what is sent.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.errors import EstimatorError

if TYPE_CHECKING:
    from estimators.sdk.library import Session

CODE_URI = "s3://no-bucket/source/sourcedir.tar.gz"
"""Placeholder of the code's S3 URI."""
NO_ACCOUNT = "000000000000"
"""Placeholder of the account in a role's ARN, and in the name of the SDK's default bucket."""
_CODE_HYPERPARAMETER = "sagemaker_submit_directory"
_ACCOUNT = re.compile(r"arn:[a-z-]+:iam::(\d{12}):")


@dataclass(slots=True, kw_only=True)
class _Asked:
    """What the SDK asked a session for while it built a request."""

    default_bucket: str | None = None
    role_name: str | None = None
    uploads: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job's CreateTrainingJob before it is sent."""

    members: Mapping[str, Any]
    """CreateTrainingJob, with placeholders where `complete` puts in a value."""
    session: Session
    """The session that sends the job."""
    default_bucket: str | None = None
    """The name that `members` have for the session's default bucket; None if they do not use it."""
    role_name: str | None = None
    """The name of the job's role, if its ARN is unknown; otherwise None."""
    uploads: tuple[Mapping[str, Any], ...] = ()
    """Arguments of `Session.upload_data`, for the sources of the user's own Debugger rules."""

    @property
    def name(self) -> str:
        """The training job's name."""
        name: str = self.members["TrainingJobName"]
        return name

    def complete(self, upload_code: Callable[[], tuple[str, str] | None]) -> dict[str, Any]:
        """Return the request as it is sent. Find the role, make the default bucket if missing, and upload the code.

        `upload_code` returns the code's S3 URI and script, or None for a training recipe, whose request has both.
        Raise EstimatorError if IAM does not know the role, or an upload fails.
        """
        from estimators.sdk import sessions

        # The role comes first: nothing is uploaded for a job whose role does not exist.
        role = sessions.role_arn(self.role_name, self.session) if self.role_name else self.members["RoleArn"]
        members: dict[str, Any] = {**self.members, "RoleArn": role}
        uploads = [dict(each) for each in self.uploads]
        if self.default_bucket is not None and (bucket := sessions.default_bucket(self.session)) != self.default_bucket:
            members = _moved(members, f"s3://{self.default_bucket}/", f"s3://{bucket}/")
            uploads = [{**each, "bucket": bucket} for each in uploads]
        code = upload_code()  # first, for it may refuse the code before anything is uploaded
        for each in uploads:
            sessions.upload(self.session, each)
        return members if code is None else with_code(members, code[0])


def build(
    arguments: Mapping[str, Any],
    inputs: Any,
    *,
    script: str,
    job_name: str | None,
    session: Session | None,
    experiment_config: Any = None,
) -> tuple[JobRequest | None, str | None]:
    """Return the SDK's request and None, or None and the SDK's reason to refuse the job. Nothing is sent or uploaded.

    `script` is the entry point in the bundle. AWS is not asked for the account or the role. The role's account is the
    session's, because CreateTrainingJob accepts no other.
    """
    from estimators.sdk import sessions
    from estimators.sdk.request_values import without_repository

    session = session or sessions.session()
    asked = _Asked()
    offline = _offline(session, arguments.get("role"), asked)
    call = {"job_name": job_name, "experiment_config": experiment_config, "code": (CODE_URI, script)}
    return _built(without_repository(arguments), inputs, call, offline, session, asked)


def build_recipe(
    arguments: Mapping[str, Any], inputs: Any, *, job_name: str | None, session: Session, experiment_config: Any = None
) -> tuple[JobRequest | None, str | None]:
    """Return a training recipe's request as `build` does. The SDK downloads the recipe, and uploads its code."""
    call = {"job_name": job_name, "experiment_config": experiment_config, "code": None}
    return _built(arguments, inputs, call, session, session, _Asked())


def _built(
    arguments: Mapping[str, Any], inputs: Any, call: Mapping[str, Any], by: Session, session: Session, asked: _Asked
) -> tuple[JobRequest | None, str | None]:
    """Return the request that the SDK builds with the session `by`, to be sent with `session`."""
    from estimators.sdk.adapter import adapter
    from estimators.sdk.quiet import without_log

    try:
        with without_log():
            # Copies, because the SDK fills in defaults in the user's own objects.
            members = adapter().request(copy.deepcopy(arguments), copy.deepcopy(inputs), session=by, **call)
    except EstimatorError as fault:
        return None, _in_one_line(fault.__cause__ or fault)
    except (ValueError, RuntimeError) as fault:
        return None, _in_one_line(fault)
    except (TypeError, AttributeError, LookupError) as fault:  # an internal error of the SDK, with a short message
        return None, f"{type(fault).__name__}: {_in_one_line(fault)}"
    if call["code"] is not None and CODE_URI not in json.dumps(members, default=str):  # `with_code` would find nothing
        return None, "its installed version leaves the code out of the request; install an older one, or a newer smddp"
    return (
        JobRequest(
            members=members,
            session=session,
            default_bucket=asked.default_bucket,
            role_name=asked.role_name,
            uploads=tuple(asked.uploads),
        ),
        None,
    )


def _offline(session: Session, role: object, asked: _Asked) -> Session:
    """Return a copy of a session that sends no request to AWS, and adds the requests to `asked` instead."""
    from estimators.sdk import sessions

    offline = copy.copy(session)
    found = _ACCOUNT.match(str(role or sessions.configured_role(session)))
    unnamed = f"sagemaker-{session.boto_region_name}-{found[1] if found else NO_ACCOUNT}"
    bucket = sessions.named_bucket(session) or unnamed

    def default_bucket() -> str:
        asked.default_bucket = bucket
        return bucket

    def expand_role(role: str) -> str:
        if "/" in role:
            return role
        asked.role_name = role
        return f"arn:aws:iam::{NO_ACCOUNT}:role/{role}"

    def upload_data(path: str, bucket: str, key_prefix: str, **options: Any) -> str:
        if not Path(path).exists():
            raise ValueError(f"there is no {path}, the source of a Debugger rule")
        asked.uploads.append({"path": path, "bucket": bucket, "key_prefix": key_prefix, **options})
        return f"s3://{bucket}/{key_prefix}" + ("" if Path(path).is_dir() else f"/{Path(path).name}")

    offline.default_bucket, offline.expand_role, offline.upload_data = default_bucket, expand_role, upload_data
    return offline


def with_code(members: Mapping[str, Any], uri: str) -> dict[str, Any]:
    """Return a request with the code's URI: in a hyperparameter, or in the code's channel if there is no network."""
    texts = dict(members["HyperParameters"])
    if texts.get(_CODE_HYPERPARAMETER) == json.dumps(CODE_URI):
        return {**members, "HyperParameters": {**texts, _CODE_HYPERPARAMETER: json.dumps(uri)}}
    return {
        **members,
        "InputDataConfig": _replaced(members["InputDataConfig"], lambda text: uri if text == CODE_URI else text),
    }


def _moved(members: Any, one: str, other: str) -> Any:
    """Return a request in which each S3 URI that begins with `one` begins with `other`."""
    return _replaced(members, lambda text: other + text.removeprefix(one) if text.startswith(one) else text)


def _replaced(value: Any, replace: Callable[[str], str]) -> Any:
    """Return a copy of a structure in which `replace` has been applied to each text."""
    if isinstance(value, Mapping):
        return {name: _replaced(item, replace) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(item, replace) for item in value]
    return replace(value) if isinstance(value, str) else value


def _in_one_line(fault: object) -> str:
    return " ".join(str(fault).split()).rstrip(".!")
