"""AWS's rules between the members of a CreateTrainingJob, which its model of the service does not state.

They are for a request whose form is right, which `service_model` says. The plan holds to them what it is about to send,
the local platform what it was sent. What the local platform alone does not offer is its own parser's to refuse.
"""

from estimators.request_rules.broken_rule import BrokenRule as BrokenRule
from estimators.request_rules.rules import broken_by_tags as broken_by_tags
from estimators.request_rules.rules import broken_rules as broken_rules
from estimators.request_rules.times import DEFAULT_MAX_RUNTIME as DEFAULT_MAX_RUNTIME
from estimators.request_rules.times import LONGEST_RUNTIME as LONGEST_RUNTIME
