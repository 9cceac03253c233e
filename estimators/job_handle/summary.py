"""A job's description as a notebook shows it: status, failure, hosts, times, files, last metrics, hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from estimators.errors import shown_reason
from estimators.job_handle.files import model_uri
from smddp.display_text import duration
from smddp.process import notebook_html
from smddp.secret_text import masked, masked_text

_OF_THE_SDK = "sagemaker_"
"""Prefix of the hyperparameters that the SageMaker SDK adds."""


def job_html(name: str, description: Mapping[str, Any]) -> str:
    """Return a DescribeTrainingJob as HTML, without its secrets."""
    status, finer = description["TrainingJobStatus"], description.get("SecondaryStatus")
    reason = description.get("FailureReason")
    hyperparameters = {
        key: value for key, value in description.get("HyperParameters", {}).items() if not key.startswith(_OF_THE_SDK)
    }
    return "".join(
        [
            notebook_html.title(name, status if finer in (status, None) else f"{status}, {finer}"),
            "" if reason is None else notebook_html.text(masked_text(shown_reason(reason))),
            notebook_html.table((label, masked_text(value)) for label, value in _facts(description)),
            FinalMetrics.of(description)._repr_html_() or "",
            notebook_html.table(masked(hyperparameters).items(), ["hyperparameter", "value"]),
        ]
    )


class FinalMetrics(dict[str, float]):
    """The last value of each metric. A notebook shows them as a table."""

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> FinalMetrics:
        """Read them from a job's description."""
        return cls((each["MetricName"], each["Value"]) for each in description.get("FinalMetricDataList", []))

    def _repr_html_(self) -> str | None:
        return notebook_html.table(self.items(), ["metric", "last value"]) or None


def _facts(description: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    resources = description.get("ResourceConfig", {})
    groups = resources.get("InstanceGroups") or [resources]
    hosts = " + ".join(f"{each['InstanceCount']} × {each['InstanceType']}" for each in groups if "InstanceType" in each)
    if hosts:
        yield "hosts", f"{hosts}, spot" if description.get("EnableManagedSpotTraining") else hosts
    if created := description.get("CreationTime"):
        yield "created", f"{created.astimezone():%Y-%m-%d %H:%M:%S}"
    for label, member in (("trained", "TrainingTimeInSeconds"), ("billed", "BillableTimeInSeconds")):
        if member in description:
            yield label, duration(description[member])
    if model := model_uri(description):
        yield "model", model
    if checkpoints := description.get("CheckpointConfig", {}).get("S3Uri"):
        yield "checkpoints", checkpoints
