"""TorchX's way to send a job: ``torchx run -s smddp smddp.train …``.

The package torchx finds both by entry points: the scheduler, and the component ``smddp.train``.
"""
