from __future__ import annotations

from estimators.errors import error
from estimators.plan import Plan
from estimators.plan.cost import Cost
from estimators.plan.resources import Topology
from smddp.secret_text import MASK

TOPOLOGY = Topology(hosts=((2, "ml.g5.xlarge"),), launcher="torchrun", hosts_with_ranks=2, processes_per_host=1)


def test_a_notebook_shows_what_the_text_says_escaped_and_without_secrets() -> None:
    problem = error("hyperparameters", "<b> is no learning rate, and HF_TOKEN=abcd1234", "Give a number")
    plan = Plan(topology=TOPOLOGY, global_batch=64, cost=Cost.of_this_machine(), problems=(problem,))
    shown = plan._repr_html_()
    for part in (
        *("2 × ml.g5.xlarge, torchrun, 1 process on each, 2 in all", "nothing: it runs on this machine", "64"),
        f"&lt;b&gt; is no learning rate, and HF_TOKEN={MASK} Give a number",
    ):
        assert f">{part}</td>" in shown
    assert [part.partition("</th>")[0].rpartition(">")[2] for part in shown.split("<th ")[1:]] == [
        *("hosts", "cost", "global batch", "error: hyperparameters"),
    ]
