"""The SageMaker Python SDK V3, which lacks ``PyTorch``: the same request is built here, and sent with V3's session."""

from estimators.sdk.v3.adapter import is_local, is_pipeline, local_session, request, send, trainer
from estimators.sdk.v3.parameters import parameter_names, switches

__all__ = ["is_local", "is_pipeline", "local_session", "parameter_names", "request", "send", "switches", "trainer"]
