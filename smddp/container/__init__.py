"""``train``: the program that a SageMaker training image runs; ``python -m smddp.container`` starts it.

It reads /opt/ml, fetches the code, starts the job's processes and reports their end. Only those processes import torch
and train.
"""
