"""The kinds of faults, as values and as text: ``throttle on=DescribeTrainingJob count=3 reclaim step=20``.

A job's tag, the platform's own operation and the command line take the text: each fault is its word, followed by its
fields. The text has only characters that a tag's value may have.
"""

from __future__ import annotations

import math
import re
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar

from estimators.errors import nearest

TAG = "smddp:chaos"
"""Key of the job tag whose value is the text of the job's faults."""
MOST_FAULTS = 100
"""Limit of faults that are set at once."""
LONGEST_SECONDS = 3600.0
_MOST_TAG_CHARACTERS = 256
_WHOLE = re.compile(r"[0-9]{1,10}")
_NUMBER = re.compile(r"[0-9]{1,10}(\.[0-9]{1,20})?(e-[0-9]{1,3})?")
_TARGET = re.compile(r"[A-Za-z0-9]{1,80}(:[A-Z]{1,8})?")
_HOST = re.compile(r"algo-[1-9][0-9]{0,2}")
_INSTANCE_TYPE = re.compile(r"ml\.[a-z0-9-]{1,20}\.[a-z0-9-]{1,20}")


@dataclass(kw_only=True, slots=True, frozen=True)
class Fault:
    """A fault and its frequency: once, unless `count` or `probability` says otherwise."""

    word: ClassVar[str]
    """First word of the fault's text."""
    count: int | None = None
    """Number of times that the fault occurs."""
    probability: float | None = None
    """Probability of the fault at each occasion, in (0, 1]. Without a `count`, it never ends."""
    seed: int = 0
    """Seed of `probability`: the same seed gives the same sequence of hits and misses."""

    def __post_init__(self) -> None:
        _require(self, "count", whole=True, least=1)
        _require(self, "probability", most=1)
        _require(self, "seed", whole=True, least=0)
        if self.probability == 0:
            raise ValueError(f"{self.word}: probability=0 is never met: give more than 0, or leave the fault out")

    @property
    def most(self) -> float:
        """Maximum number of times that the fault occurs."""
        if self.count is None:
            return 1 if self.probability is None else math.inf
        return self.count

    def __str__(self) -> str:
        given = [
            f"{field.name}={value}"
            for field in sorted(fields(self), key=lambda field: field.name in Fault.__slots__)
            if (value := getattr(self, field.name)) != field.default
        ]
        return " ".join([self.word, *given])


@dataclass(kw_only=True, slots=True, frozen=True)
class RequestFault(Fault):
    """A fault of requests."""

    on: str
    """Requests that meet the fault: an operation (``DescribeTrainingJob``), all of a service (``sagemaker``, ``logs``,
    ``s3``, …), or those to S3 with one method (``s3:GET``)."""

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        if not isinstance(self.on, str) or not _TARGET.fullmatch(self.on):
            raise ValueError(
                f"{self.word}: on={str(self.on)[:80]!r}: give an operation such as DescribeTrainingJob, a service such "
                "as s3, or s3:GET"
            )


@dataclass(kw_only=True, slots=True, frozen=True)
class Throttle(RequestFault):
    """The request is refused for its rate: ThrottlingException with status 400, for S3 SlowDown with status 503.

    Examples:
        >>> str(Throttle(on="DescribeTrainingJob", count=3))
        'throttle on=DescribeTrainingJob count=3'
    """

    word: ClassVar[str] = "throttle"


@dataclass(kw_only=True, slots=True, frozen=True)
class ServerError(RequestFault):
    """The request fails with status 500, and has no effect: InternalFailure, for S3 InternalError.

    Examples:
        >>> str(ServerError(on="s3:PUT", probability=0.1, seed=7))
        'error on=s3:PUT probability=0.1 seed=7'
    """

    word: ClassVar[str] = "error"


@dataclass(kw_only=True, slots=True, frozen=True)
class Slow(RequestFault):
    """The request starts some seconds late.

    Examples:
        >>> str(Slow(on="s3", seconds=0.5, probability=1))
        'slow on=s3 seconds=0.5 probability=1'
    """

    word: ClassVar[str] = "slow"
    seconds: float
    """Delay in seconds."""

    def __post_init__(self) -> None:
        RequestFault.__post_init__(self)
        _require(self, "seconds", most=LONGEST_SECONDS)


@dataclass(kw_only=True, slots=True, frozen=True)
class JobFault(Fault):
    """A fault of training jobs. Each attempt of a job meets at most one of each kind."""


@dataclass(kw_only=True, slots=True, frozen=True)
class NoCapacity(JobFault):
    """An attempt of a job finds no instances: it waits in Starting, or fails with CapacityError.

    A job with instance preferences takes its next preference instead, if it has one.

    Examples:
        >>> str(NoCapacity(seconds=30))
        'no-capacity seconds=30'
        >>> str(NoCapacity(instance_type="ml.p4d.24xlarge"))
        'no-capacity instance_type=ml.p4d.24xlarge'
    """

    word: ClassVar[str] = "no-capacity"
    seconds: float | None = None
    """Seconds that the job waits in Starting before it goes on; None: it fails at once."""
    instance_type: str | None = None
    """The type without capacity; None: all types."""

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        _require(self, "seconds", most=LONGEST_SECONDS)
        kind = self.instance_type
        if kind is not None and not (isinstance(kind, str) and _INSTANCE_TYPE.fullmatch(kind)):
            raise ValueError(f"{self.word}: instance_type={str(kind)[:80]!r}: give one such as ml.g5.xlarge")


@dataclass(kw_only=True, slots=True, frozen=True)
class _InTraining(JobFault):
    """A fault during a job's training."""

    seconds: float | None = None
    """Seconds from the beginning of the attempt's training to the fault."""
    step: int | None = None
    """The fault comes at the first log line of the job with a ``step=`` of this step or a later one."""

    def __post_init__(self) -> None:
        Fault.__post_init__(self)
        _require(self, "seconds", most=LONGEST_SECONDS)
        _require(self, "step", whole=True, least=0)
        if (self.seconds is None) == (self.step is None):
            raise ValueError(f"{self.word}: say when it comes, by seconds= or by step=, and not by both")


@dataclass(kw_only=True, slots=True, frozen=True)
class LoseHost(_InTraining):
    """A host of the job disappears without notice, as by SIGKILL.

    Examples:
        >>> str(LoseHost(step=100, host="algo-2"))
        'lose-host step=100 host=algo-2'
    """

    word: ClassVar[str] = "lose-host"
    host: str = "algo-1"
    """Name of the host; a job without such a host does not meet the fault."""

    def __post_init__(self) -> None:
        _InTraining.__post_init__(self)
        if not isinstance(self.host, str) or not _HOST.fullmatch(self.host):
            raise ValueError(f"{self.word}: host={str(self.host)[:80]!r}: give algo-1, algo-2, …")


@dataclass(kw_only=True, slots=True, frozen=True)
class Reclaim(_InTraining):
    """The instances of a spot job are reclaimed: SIGTERM, the grace time, a new start. Only spot jobs meet it.

    Examples:
        >>> str(Reclaim(seconds=30))
        'reclaim seconds=30'
    """

    word: ClassVar[str] = "reclaim"


_KINDS: dict[str, type[Fault]] = {
    kind.word: kind for kind in (Throttle, ServerError, Slow, NoCapacity, LoseHost, Reclaim)
}


def parse(text: str) -> tuple[Fault, ...]:
    """Return the faults of a text, as ``str`` writes them one after the other; raise ValueError with the wrong word."""
    written: list[tuple[type[Fault], dict[str, Any]]] = []
    for word in text.split():
        name, is_field, value = word.partition("=")
        if is_field and written:
            kind, given = written[-1]
            if name in given:
                raise ValueError(f"{kind.word}: {name}= comes twice")
            given[name] = _read(kind, name, value)
        elif word in _KINDS:
            written.append((_KINDS[word], {}))
        else:
            raise ValueError(f"{word[:80]!r} is no fault. {nearest(word[:80], _KINDS)}")
    if len(written) > MOST_FAULTS:
        raise ValueError(f"there are {len(written)} faults: at most {MOST_FAULTS} can be set at once")
    return tuple(_make(kind, given) for kind, given in written)


def tag(*faults: JobFault) -> dict[str, str]:
    """Return the tag that makes a job meet these faults: an entry of the Estimator's ``tags``.

    Raises:
        ValueError: One is not a fault of jobs, or their text is longer than a tag's value may be.

    Examples:
        >>> tag(Reclaim(step=20), NoCapacity(seconds=30))
        {'Key': 'smddp:chaos', 'Value': 'reclaim step=20 no-capacity seconds=30'}
    """
    text = " ".join(map(str, require_job_faults(faults)))
    if len(text) > _MOST_TAG_CHARACTERS:
        raise ValueError(f"the faults are {len(text)} characters; a tag takes {_MOST_TAG_CHARACTERS}: set fewer")
    return {"Key": TAG, "Value": text}


def require_job_faults(faults: tuple[Fault, ...]) -> tuple[JobFault, ...]:
    """Return the same faults; raise ValueError if one is not a fault of jobs."""
    for fault in faults:
        if not isinstance(fault, JobFault):
            raise ValueError(f"{fault} is no fault of a job: set it for the platform")
    return tuple(fault for fault in faults if isinstance(fault, JobFault))


def _read(kind: type[Fault], name: str, value: str) -> Any:
    types = {field.name: str(field.type) for field in fields(kind)}
    if name not in types:
        raise ValueError(f"{kind.word} has no {name[:80]}=. {nearest(name[:80], types)}")
    if types[name].startswith("str"):
        return value
    pattern = _WHOLE if types[name].startswith("int") else _NUMBER
    if not pattern.fullmatch(value):
        what = "a whole number" if pattern is _WHOLE else "a number"
        raise ValueError(f"{kind.word}: {name}={value[:80]!r} is not {what}, such as 3")
    return int(value) if _WHOLE.fullmatch(value) else float(value)


def _make(kind: type[Fault], given: dict[str, Any]) -> Fault:
    for field in fields(kind):
        if field.default is MISSING and field.name not in given:
            raise ValueError(f"{kind.word} needs {field.name}=")
    return kind(**given)


def _require(fault: Fault, name: str, *, whole: bool = False, least: float = 0, most: float = 10**9) -> None:
    """Refuse a value of a field that is not a number or out of bounds; None passes."""
    value = getattr(fault, name)
    kinds = int if whole else (int, float)
    if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most):
        what = "a whole number" if whole else "a number"
        raise ValueError(f"{fault.word}: {name}={str(value)[:80]}: give {what} from {least:g} to {most:g}")
