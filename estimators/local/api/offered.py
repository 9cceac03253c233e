"""The AWS operations that the platform answers; every other one is refused by name, with an alternative.

This is an allow-list, because moto behind it imitates far more: a transform job that is Completed though nothing ran,
an endpoint that answers `b'body'`. An offered operation either does its work (training, tuning and processing jobs,
objects, logs) or is a record by its nature. To add an operation, check that its answer is true, and add it here and to
the table in docs/reference/local-platform.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from estimators.errors import nearest
from estimators.local.engine import ApiError
from estimators.local.engine.errors import invalid

S3 = "s3"
SAGEMAKER = "sagemaker"


@dataclass(kw_only=True, slots=True, frozen=True)
class Offer:
    """Related operations of one service."""

    service: str
    """AWS's signing name of the service."""
    subject: str
    """Topic of the operations, as docs/reference/local-platform.md words it."""
    operations: tuple[str, ...]


OFFERS = (
    Offer(
        service=SAGEMAKER,
        subject="SageMaker: training jobs",
        operations=(
            "CreateTrainingJob",
            "DescribeTrainingJob",
            "ListTrainingJobs",
            "StopTrainingJob",
            "UpdateTrainingJob",
            "DeleteTrainingJob",
            "Search",
        ),
    ),
    Offer(
        service=SAGEMAKER,
        subject="SageMaker: tuning jobs",
        operations=(
            "CreateHyperParameterTuningJob",
            "DescribeHyperParameterTuningJob",
            "ListHyperParameterTuningJobs",
            "ListTrainingJobsForHyperParameterTuningJob",
            "StopHyperParameterTuningJob",
            "DeleteHyperParameterTuningJob",
        ),
    ),
    Offer(
        service=SAGEMAKER,
        subject="SageMaker: processing jobs",
        operations=(
            "CreateProcessingJob",
            "DescribeProcessingJob",
            "ListProcessingJobs",
            "StopProcessingJob",
            "DeleteProcessingJob",
        ),
    ),
    Offer(
        service=SAGEMAKER,
        subject="SageMaker: tags of all that is here",
        operations=("AddTags", "ListTags", "DeleteTags"),
    ),
    Offer(
        service=SAGEMAKER,
        subject="SageMaker: models, as records",
        operations=("CreateModel", "DescribeModel", "ListModels", "DeleteModel"),
    ),
    Offer(
        service=SAGEMAKER,
        subject="SageMaker: model packages and cards, as records",
        operations=(
            "CreateModelPackageGroup",
            "DescribeModelPackageGroup",
            "ListModelPackageGroups",
            "CreateModelPackage",
            "DescribeModelPackage",
            "ListModelPackages",
            "UpdateModelPackage",
            "CreateModelCard",
            "DescribeModelCard",
            "ListModelCards",
            "ListModelCardVersions",
            "UpdateModelCard",
            "DeleteModelCard",
        ),
    ),
    Offer(
        service=SAGEMAKER,
        subject="SageMaker: experiments, trials and trial components",
        operations=(
            "CreateExperiment",
            "DescribeExperiment",
            "ListExperiments",
            "UpdateExperiment",
            "DeleteExperiment",
            "CreateTrial",
            "DescribeTrial",
            "ListTrials",
            "UpdateTrial",
            "DeleteTrial",
            "CreateTrialComponent",
            "DescribeTrialComponent",
            "ListTrialComponents",
            "UpdateTrialComponent",
            "DeleteTrialComponent",
            "AssociateTrialComponent",
            "DisassociateTrialComponent",
            "BatchPutMetrics",
        ),
    ),
    Offer(
        service="logs",
        subject="CloudWatch Logs",
        operations=(
            "CreateLogGroup",
            "CreateLogStream",
            "PutLogEvents",
            "DescribeLogGroups",
            "DescribeLogStreams",
            "GetLogEvents",
            "FilterLogEvents",
            "DeleteLogStream",
            "DeleteLogGroup",
        ),
    ),
    Offer(
        service="monitoring",
        subject="CloudWatch: the metrics of jobs, and what a program puts there",
        operations=("PutMetricData", "GetMetricData", "GetMetricStatistics", "ListMetrics"),
    ),
    Offer(
        service="iam",
        subject="IAM: roles, as records; GetRole finds one of any name",
        operations=("CreateRole", "GetRole", "ListRoles", "DeleteRole"),
    ),
    Offer(service="sts", subject="STS", operations=("GetCallerIdentity",)),
)

_OFFERED = frozenset((offer.service, operation) for offer in OFFERS for operation in offer.operations)
_SERVICES = frozenset({S3, *(offer.service for offer in OFFERS)})

_S3_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")

_AS_A_FILE = "keep it as a file of the run, by log_file() or log_artifact() of the SDK's Run"
_INSTEAD = (
    ("AutoML", "start a training job for each candidate, and compare FinalMetricDataList"),
    ("Transform", "predict in a training job that gets the model as a channel"),
    ("Endpoint", "load model.tar.gz in a program of your own"),
    ("Inference", "load model.tar.gz in a program of your own"),
    ("Pipeline", "run the steps' training jobs one after the other: call fit() for each"),
    ("Artifact", _AS_A_FILE),
    ("Association", _AS_A_FILE),
    ("BatchGetMetrics", "read the Metrics in DescribeTrialComponent, or a job's values in CloudWatch"),
    ("Cluster", "ask for several instances in a training job's ResourceConfig"),
    ("TrainingPlan", "leave it out: instances are always there"),
    ("Algorithm", "name an image in AlgorithmSpecification.TrainingImage"),
    ("Mlflow", "log to an MLflow server of your own"),
    ("Feature", "put the features into S3, and read them as a channel"),
    ("Notebook", "use an editor or Jupyter on this machine"),
)
"""The alternative for an operation whose name contains a word; the first match counts."""


def require_offered(service: str, operation: str) -> None:
    """Raise ApiError unless the platform answers an operation.

    ``service`` is AWS's signing name. All of S3 passes, because its operations are in its paths.
    """
    if service == S3 or (service, operation) in _OFFERED:
        return
    if service not in _SERVICES:
        raise _unsupported(
            f"{operation} of the service {service!r} is not on the local platform, which plays "
            f"{', '.join(sorted(_SERVICES))}. Give a client of another service its own endpoint_url and credentials."
        )
    instead = next((remedy for word, remedy in _INSTEAD if service == SAGEMAKER and word in operation), None)
    raise _unsupported(
        f"{operation} does not run on the local platform: "
        + (f"{instead}, or use AWS." if instead else "use AWS for it. docs/reference/local-platform.md has the list.")
    )


def require_target(target: str) -> None:
    """Raise ApiError unless a fault of requests may target this service, operation or method of S3."""
    targets = {*_SERVICES, *(operation for _, operation in _OFFERED), *(f"{S3}:{method}" for method in _S3_METHODS)}
    if target not in targets:
        raise invalid(f"No request to {target[:80]!r} is answered here. {nearest(target, targets)}")


def _unsupported(message: str) -> ApiError:
    """Return a refusal that no client retries."""
    return ApiError("UnsupportedOperation", message)
