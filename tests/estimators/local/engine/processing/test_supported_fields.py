"""Every member of CreateProcessingJob has a fate: it is honoured, recorded with a line in the log, or refused."""

from __future__ import annotations

import re

from estimators.local.engine.hosted.request import only_recorded, rule_of
from estimators.local.engine.processing.request import RULES
from estimators.service_model import service_model
from tests.estimators.local.engine.processing.test_request import REQUEST
from tests.estimators.local.engine.training.test_supported_fields import PAGE, paths

SHAPE = service_model().operation_model("CreateProcessingJob").input_shape


def test_every_member_has_a_rule_and_every_rule_a_member() -> None:
    known = set(paths(SHAPE))
    assert RULES.keys() <= known
    assert [path for path in known if rule_of(path, RULES) is None] == []


def test_the_page_says_what_becomes_of_each_member() -> None:
    table = PAGE.read_text().split("## Members of a CreateProcessingJob")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(.+)` \| (\w+) \| (.*) \|$", table, re.MULTILINE)
    assert [(path, support, note.strip()) for path, support, note in rows] == [
        (path, rule.support.value, rule.note) for path, rule in RULES.items()
    ]


def test_the_members_that_ask_for_what_is_not_done_are_told_and_no_others() -> None:
    assert only_recorded(REQUEST, RULES) == []
    asked = REQUEST | {"NetworkConfig": {"EnableNetworkIsolation": True, "EnableInterContainerTrafficEncryption": True}}
    assert only_recorded(asked, RULES) == ["NetworkConfig.EnableInterContainerTrafficEncryption"]
