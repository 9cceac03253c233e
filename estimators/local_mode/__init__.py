"""Jobs of ``instance_type="local"``: on the platform's Docker executor, or in the SageMaker SDK's own Local Mode.

The first is used without a ``sagemaker.local.LocalSession``: the local platform's engine runs the request for AWS in
this process, with ``file://`` for data, checkpoints and models. The second runs as Amazon wrote it.
"""
