"""Send a job with TorchX: ``torchx run -s smddp smddp.train …``.

torchx finds the scheduler and the component ``smddp.train`` by entry points.
"""
