"""Check where a job's data and checkpoints are on S3, and whether they overlap."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from estimators.errors import Problem, error, warning
from smddp.job.near_names import near_path


def _upload(path: Path) -> str:
    """Return how to bring a file or directory of this machine to S3, in Python and by AWS's command."""
    recursive = "" if path.is_file() else "--recursive "
    return (
        f"Upload it, and give the s3:// URI: sagemaker_session.upload_data({str(path)!r}) returns it; or "
        f"aws s3 cp {recursive}{path} s3://bucket/{path.resolve().name}"
    )


_MODEL = "model"
"""The channel of ``model_uri``, unless ``model_channel_name`` names it."""
_VARIABLE = "SM_CHANNEL_"


def by_name(inputs: Any) -> Mapping[str, Any]:
    """Return the channels by name; a single input is called ``training``, as in the SDK."""
    if inputs is None or isinstance(inputs, (list, tuple)):
        return {}
    return inputs if isinstance(inputs, Mapping) else {"training": inputs}


def names(arguments: Mapping[str, Any], inputs: Any) -> tuple[str, ...]:
    """Return the names of all channels that a script finds: of its data, of a model, and of variables that it gets."""
    model = [arguments.get("model_channel_name") or _MODEL] if arguments.get("model_uri") else []
    environment = arguments.get("environment")
    variables = map(str, environment) if isinstance(environment, Mapping) else ()
    stated = [name.removeprefix(_VARIABLE).lower() for name in variables if name.startswith(_VARIABLE)]
    return (*map(str, by_name(inputs)), *map(str, model), *stated)


def requested(channels: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the channels on S3 or in file systems, as the request contains them."""
    all_channels = []
    for name, place in channels.items():
        if isinstance(place, str) and place.startswith("s3://"):
            data: Mapping[str, Any] = {"DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": place}}}
        else:
            data = _configuration(place)
        all_channels.append({**data, "ChannelName": name})
    return [channel for channel in all_channels if "DataSource" in channel]


def _configuration(place: Any) -> Mapping[str, Any]:
    """Return a channel's configuration from one of the SDK's classes (``TrainingInput``, ``FileSystemInput``)."""
    configuration = getattr(place, "config", None)
    return configuration if isinstance(configuration, Mapping) else {}


def uri_of(place: Any) -> str | None:
    """Return the URI of a channel's data, or None if it has no URI."""
    if isinstance(place, str):
        return place
    uri = _configuration(place).get("DataSource", {}).get("S3DataSource", {}).get("S3Uri")
    return uri if isinstance(uri, str) else None


def local_path(uri: object) -> Path | None:
    """Return the absolute path of a ``file://`` URI, resolving a relative one, or None for anything else."""
    if not isinstance(uri, str) or not uri.startswith("file://"):
        return None
    return Path(uri.removeprefix("file://")).resolve()


def check_inputs(inputs: Any) -> Iterator[Problem]:
    """Yield a list of URIs: the SDK takes only lists of record sets."""
    if isinstance(inputs, (list, tuple)) and any(isinstance(each, (str, PurePath, Mapping)) for each in inputs):
        remedy = "Give one URI, or a dict from the names of channels to URIs, such as {'training': 's3://bucket/data'}."
        yield error("inputs", f"is {inputs!r:.100}, of type {type(inputs).__name__}", remedy)


def check(channels: Mapping[str, Any], *, local_mode: bool) -> Iterator[Problem]:
    """Yield channels whose data is in the wrong place. The SDK checks channels given as objects of its own classes."""
    for name, place in channels.items():
        parameter = f"inputs[{name!r}]"
        if isinstance(place, PurePath):
            remedy = _upload(Path(place)) if not local_mode else f"Give the text file://{Path(place).absolute()}."
            yield error(parameter, f"{place} is a path on this machine, and no URI", remedy)
        if not isinstance(place, str):
            continue
        if place.startswith("file://"):
            if not local_mode:  # `local_jobs` checks it otherwise
                remedy = _upload(Path(place.removeprefix("file://")))
                yield error(parameter, f"{place} is on this machine, where SageMaker can't read it", remedy)
        elif not place.startswith("s3://"):
            remedy = "Give s3://bucket/prefix."
            if local_mode:
                remedy = f"Give s3://bucket/prefix, or file://{Path(place).absolute()}."
            elif Path(place).exists():
                remedy = f"It is on this machine. {_upload(Path(place))}"
            elif place.startswith("s3:"):
                remedy = f"Did you mean {'s3://' + place.removeprefix('s3:').lstrip('/')!r}?"
            elif "://" not in place and (near := near_path(Path(place))) is not None:
                remedy = f"Here is no such file, either. Did you mean {near}? {_upload(near)}"
            elif "://" not in place:
                remedy = f"Here is no such file, either (looked in {Path.cwd()}). {remedy}"
            yield error(parameter, f"{place!r} is not an S3 URI", remedy)


def check_code_location(arguments: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield a code_location that is not an S3 URI; the SDK would notice only while uploading."""
    location = arguments.get("code_location")
    if isinstance(location, str) and not location.startswith("s3://"):
        remedy = "Give s3://bucket/prefix: fit() uploads the code there."
        yield error("code_location", f"{location!r} is not an S3 URI", remedy)


def check_checkpoints(
    arguments: Mapping[str, Any], channels: Mapping[str, Any], *, local_mode: bool, copied: bool
) -> Iterator[Problem]:
    """Yield problems of the checkpoint prefix: every host downloads it, and the job's deletions are repeated there.

    `local_mode` allows a directory of this machine; `copied` is False for the SDK's Local Mode, which copies nothing.
    """
    uri = arguments.get("checkpoint_s3_uri")
    if not isinstance(uri, str):
        return
    where = "checkpoint_s3_uri"
    if local_path(uri) and local_mode:
        return
    if not uri.startswith("s3://"):
        remedy = "Give s3://bucket/prefix, to which the job writes; nothing need be there yet."
        if local_mode:
            remedy = "Give file:///directory, or s3://bucket/prefix."
        elif local_path(uri):
            remedy = "It is on this machine, where only instance_type='local' can keep checkpoints. " + remedy
        yield error(where, f"{uri!r} is not an S3 URI", remedy)
        return
    if copied and not uri.removeprefix("s3://").strip("/").partition("/")[2]:
        yield warning(
            where,
            f"{uri} is a whole bucket, all of which every host downloads at its start",
            "Give a prefix of this job's own.",
        )
    others = {
        "output_path": arguments.get("output_path"),
        **{f"inputs[{name!r}]": uri_of(at) for name, at in channels.items()},
    }
    for other, place in others.items():
        if not isinstance(place, str):
            continue
        if _is_within(place, uri) and copied:
            yield error(
                where,
                f"{uri} contains {other} ({place}): it would be downloaded and deleted with the checkpoints",
                "Give checkpoints a prefix of their own.",
            )
        elif _is_within(uri, place) and other != "output_path":
            yield warning(
                where,
                f"it ({uri}) lies in {other} ({place}): checkpoints would be read as data",
                "Give checkpoints a prefix of their own.",
            )
        elif _brings(place, uri) and other != "output_path":
            yield warning(
                where,
                f"it ({uri}) begins with {other} ({place}), which brings every key that does: checkpoints would be "
                "read as data",
                f"Give {place}/ for the directory alone, or checkpoints a prefix of their own.",
            )


def _brings(prefix: str, uri: str) -> bool:
    """Return whether an S3 listing by `prefix` contains `uri`; a prefix that is only a bucket's name does not count."""
    return "/" in prefix.removeprefix("s3://") and uri.startswith(prefix)


def _is_within(uri: str, prefix: str) -> bool:
    return f"{uri.rstrip('/')}/".startswith(f"{prefix.rstrip('/')}/")
