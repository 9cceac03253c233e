"""Converts a dataclass to SageMaker hyperparameters and back, without loss.

A hyperparameter travels as text. SDK V2 sends each value as JSON (``"adam"`` with its quotes), V3 sends a str as it is
and JSON for the rest; both are read here. ``encode`` rules out ambiguous values before they are sent.
"""

from smddp.job.hyperparameters.codec import decode as decode
from smddp.job.hyperparameters.codec import decode_untyped as decode_untyped
from smddp.job.hyperparameters.codec import encode as encode
from smddp.job.hyperparameters.codec import to_strings as to_strings
from smddp.job.hyperparameters.sources import from_arguments as from_arguments
from smddp.job.hyperparameters.sources import from_json_file as from_json_file
from smddp.job.hyperparameters.sources import from_sm_hps as from_sm_hps
from smddp.job.hyperparameters.sources import load as load
from smddp.job.hyperparameters.sources import read_bundled as read_bundled
from smddp.job.hyperparameters.sources import with_bundled as with_bundled
