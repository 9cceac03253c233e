"""Jobs of ``instance_type="local"``: on the platform's Docker executor, or in the SageMaker SDK's own Local Mode.

The first is for whoever gives no ``sagemaker.local.LocalSession``: the request that AWS would get is run by the local
platform's engine in this process, with ``file://`` for data, checkpoints and models. The second runs as Amazon wrote
it.
"""
