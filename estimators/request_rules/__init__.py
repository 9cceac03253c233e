"""AWS's rules between the members of a CreateTrainingJob that the API's model does not state.

They apply to requests that `service_model` allows. The plan checks the request it is about to send, the local platform
the one it received. Features that only the local platform lacks are refused by its own parser.
"""

from estimators.request_rules.broken_rule import BrokenRule as BrokenRule
from estimators.request_rules.rules import broken_by_tags as broken_by_tags
from estimators.request_rules.rules import broken_rules as broken_rules
from estimators.request_rules.times import DEFAULT_MAX_RUNTIME as DEFAULT_MAX_RUNTIME
from estimators.request_rules.times import LONGEST_RUNTIME as LONGEST_RUNTIME
