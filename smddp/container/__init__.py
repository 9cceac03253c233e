"""``train``: the program that a SageMaker training image runs; ``python -m smddp.container`` starts it.

It reads /opt/ml, fetches the code, starts the job's processes and reports how they ended. The training itself, and
torch with it, happens in those processes only.
"""
