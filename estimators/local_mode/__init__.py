"""The SageMaker SDK's Local Mode (``instance_type="local"``), with what it lacks.

The SDK writes a Compose file and calls Compose; all that it does stays as it is. What is added happens around that
one call (``path_shims``, ``compose_up``) and in what the SDK is given (``given``).
"""
