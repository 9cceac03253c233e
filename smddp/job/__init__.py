"""The job by the /opt/ml contract: name, directories, channels and hyperparameters. Does not import torch."""

from smddp.job.channels import Channels as Channels
from smddp.job.channels import Input as Input
from smddp.job.channels import Inputs as Inputs
from smddp.job.job import CHECKPOINT_URI_VARIABLE as CHECKPOINT_URI_VARIABLE
from smddp.job.job import MAX_STEPS_VARIABLE as MAX_STEPS_VARIABLE
from smddp.job.job import Job as Job
from smddp.job.job import direct_checkpoint_uri as direct_checkpoint_uri
from smddp.job.job import with_run_variables as with_run_variables
