"""The operations that SDK V2 and V3 implement differently: one adapter for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from estimators.sdk.installed import installed

if TYPE_CHECKING:
    from estimators.sdk.library import Session


class Adapter(Protocol):
    """The interface that the module of each SDK implements."""

    def parameter_names(self) -> frozenset[str]:
        """Return the names of all parameters of ``PyTorch`` and its bases."""

    def switches(self) -> frozenset[str]:
        """Return the names of the parameters that take only True, False or a pipeline's variable."""

    def request(
        self,
        arguments: Mapping[str, Any],
        inputs: Any,
        *,
        session: Session,
        job_name: str | None,
        experiment_config: Mapping[str, str] | None,
        code: tuple[str, str] | None,
    ) -> dict[str, Any]:
        """Return a job's CreateTrainingJob, without sending it.

        `code` is the S3 URI that the containers get, and the script in it; None lets the SDK upload a training recipe's
        code. The SDK may change the values in `arguments`. Raise EstimatorError if the SDK refuses the parameters;
        ValueError, TypeError, RuntimeError, AttributeError or LookupError if it refuses the request.
        """

    def is_local(self, session: Session | None) -> bool:
        """Return whether a session belongs to the SDK's Local Mode."""

    def local_session(self, given: Session | None = None) -> Session:
        """Return a session of the SDK's Local Mode, or raise EstimatorError if the SDK has none."""

    def is_pipeline(self, session: Session | None) -> bool:
        """Return whether a session's jobs become pipeline steps, or raise EstimatorError if `fit` can't make them."""

    def trainer(
        self, arguments: Mapping[str, Any], session: Session, code: Callable[[], tuple[str, str] | None]
    ) -> Any:
        """Return the SDK's own object for a job, or raise EstimatorError if the SDK refuses the parameters.

        `code` is called once the SDK has accepted them, unless its object uploads the code itself.
        """


def adapter() -> Adapter:
    """Return the adapter of the installed SDK, or raise EstimatorError if none is installed completely."""
    if installed() == "V2":
        from estimators.sdk import v2

        return v2
    from estimators.sdk import v3

    return v3
