"""What the other rooms ask of the SageMaker SDK that V2 and V3 do in different ways: one adapter for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from estimators.sdk.code_place import UploadCode
from estimators.sdk.installed import installed

if TYPE_CHECKING:
    from estimators.sdk.library import Session


class Adapter(Protocol):
    """The module of one SDK."""

    def parameter_names(self) -> frozenset[str]:
        """Return the names of all parameters of ``PyTorch`` and its bases."""

    def switches(self) -> frozenset[str]:
        """Return the names of the parameters that are True or False, and nothing else but a pipeline's variable."""

    def request(
        self,
        arguments: Mapping[str, Any],
        inputs: Any,
        *,
        session: Session,
        job_name: str | None,
        experiment_config: Mapping[str, str] | None,
        code: tuple[str, str],
    ) -> dict[str, Any]:
        """Return the CreateTrainingJob of a job; nothing is uploaded or sent.

        Args:
            arguments: The parameters for ``PyTorch``, with versions or an image. The SDK may change their values.
            inputs: The channels, as for ``PyTorch.fit``.
            session: Whose region and defaults the job has.
            job_name: The job's name; None makes one.
            experiment_config: The experiment that the job belongs to, as for ``PyTorch.fit``.
            code: Where the containers are told that the code is, and its script there.

        Raises:
            EstimatorError: The SDK refuses the parameters.
            ValueError: It refuses the request; or TypeError, RuntimeError, AttributeError, LookupError.
        """

    def send(
        self,
        arguments: Mapping[str, Any],
        inputs: Any,
        *,
        session: Session,
        job_name: str | None,
        experiment_config: Mapping[str, str] | None,
        code: UploadCode,
    ) -> str:
        """Upload a job's code, send its request, and return its name.

        Args:
            arguments: The parameters for ``PyTorch``, with versions or an image.
            inputs: The channels, as for ``PyTorch.fit``.
            session: Where it is sent.
            job_name: The job's name; None makes one.
            experiment_config: The experiment that the job belongs to, as for ``PyTorch.fit``.
            code: Called once the SDK has accepted the parameters.

        Raises:
            EstimatorError: The SDK refuses the parameters.
        """

    def is_local(self, session: Session | None) -> bool:
        """Return whether a session is one of the SDK's own Local Mode."""

    def local_session(self, given: Session | None = None) -> Session:
        """Return a session of the SDK's own Local Mode.

        Raises:
            EstimatorError: The SDK has none.
        """

    def is_pipeline(self, session: Session | None) -> bool:
        """Return whether jobs of a session are not sent, but become steps of a pipeline.

        Raises:
            EstimatorError: They are, and `fit` can't make them.
        """

    def trainer(self, arguments: Mapping[str, Any], session: Session, code: UploadCode) -> Any:
        """Return the SDK's own object for a job.

        Args:
            arguments: The parameters for ``PyTorch``, with versions or an image.
            session: Where it sends jobs.
            code: Called once the SDK has accepted the parameters, if its object does not upload the code itself.

        Raises:
            EstimatorError: The SDK refuses the parameters.
        """


def adapter() -> Adapter:
    """Return the adapter of the installed SDK.

    Raises:
        EstimatorError: None is installed, or not as a whole.
    """
    if installed() == "V2":
        from estimators.sdk import v2

        return v2
    from estimators.sdk import v3

    return v3
