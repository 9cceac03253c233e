"""What the syntax of a training script says before it runs: its modules, imports, options and hyperparameters.

Nothing of the user's is imported or run. A part that the syntax does not decide gives no fault.
"""

from smddp.script_syntax.config_values import ConfigValues as ConfigValues
from smddp.script_syntax.config_values import Fault as Fault
from smddp.script_syntax.config_values import run_main as run_main
from smddp.script_syntax.entry_point import EntryPoint as EntryPoint
from smddp.script_syntax.entry_point import find_entry_point as find_entry_point
from smddp.script_syntax.executed import Executed as Executed
from smddp.script_syntax.executed import executed as executed
from smddp.script_syntax.imports import brings_modules as brings_modules
from smddp.script_syntax.imports import hiding_modules as hiding_modules
from smddp.script_syntax.imports import is_installed_here as is_installed_here
from smddp.script_syntax.imports import outside_imports as outside_imports
from smddp.script_syntax.modules import PACKAGE as PACKAGE
from smddp.script_syntax.modules import Modules as Modules
from smddp.script_syntax.modules import PythonModule as PythonModule
from smddp.script_syntax.modules import imported_by as imported_by
from smddp.script_syntax.script_inputs import OptionParser as OptionParser
from smddp.script_syntax.script_inputs import channel_read as channel_read
from smddp.script_syntax.script_kind import handles_signals as handles_signals
from smddp.script_syntax.script_kind import only_sends as only_sends
from smddp.script_syntax.script_kind import only_trains as only_trains
