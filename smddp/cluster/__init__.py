"""Where am I? One frozen :class:`Cluster`, whatever started this process. Nothing here loads torch."""

from smddp.cluster.cluster import Cluster as Cluster
from smddp.cluster.sagemaker import OF_RUN_DIRECTORY as OF_RUN_DIRECTORY
from smddp.cluster.sagemaker import without_run_variables as without_run_variables
