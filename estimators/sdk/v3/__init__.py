"""The SageMaker Python SDK V3, which lacks ``PyTorch``: the same request is built here."""

from estimators.sdk.v3.adapter import is_local, is_pipeline, local_session, request, trainer
from estimators.sdk.v3.parameters import parameter_names, switches

__all__ = ["is_local", "is_pipeline", "local_session", "parameter_names", "request", "switches", "trainer"]
