"""The console: a web page over the SageMaker API, for the local platform and for AWS. Behind ``smddp console``."""
