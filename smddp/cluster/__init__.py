"""Detects the rank and the nodes of this process as one frozen :class:`Cluster`. Does not import torch."""

from smddp.cluster.cluster import Cluster as Cluster
from smddp.cluster.sagemaker import OF_RUN_DIRECTORY as OF_RUN_DIRECTORY
from smddp.cluster.sagemaker import without_run_variables as without_run_variables
