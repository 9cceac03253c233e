"""The SageMaker SDKs. Nothing outside this folder imports ``sagemaker``, and importing this folder does not either."""
