from __future__ import annotations

import json

import pytest

from smddp.cluster import Cluster
from smddp.errors import ClusterError

V2 = {
    "SM_HOSTS": '["algo-1","algo-10","algo-2"]',
    "SM_CURRENT_HOST": "algo-10",
    "SM_RESOURCE_CONFIG": json.dumps(
        {
            "current_host": "algo-10",
            "hosts": ["algo-1", "algo-10", "algo-2"],
            "current_group_name": "homogeneousCluster",
            "instance_groups": [
                {"instance_group_name": "homogeneousCluster", "hosts": ["algo-1", "algo-10", "algo-2"]},
            ],
        }
    ),
    "SM_DISTRIBUTION_INSTANCE_GROUPS": "[]",
}
V3 = {
    "SM_HOSTS": '["algo-1", "algo-2"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_HOST_COUNT": "2",
    "SM_CURRENT_HOST_RANK": "1",
    "SM_MASTER_ADDR": "algo-1",
    "SM_MASTER_PORT": "7778",
}


def test_v2s_dialect_is_one_process_a_host_in_the_platforms_order() -> None:
    cluster = Cluster.detect(V2)
    assert cluster.hosts == ("algo-1", "algo-10", "algo-2")
    assert (cluster.rank, cluster.node_rank, cluster.host, cluster.local_rank) == (1, 1, "algo-10", 0)
    assert (cluster.world_size, cluster.node_count, cluster.local_world_size) == (3, 3, 1)
    assert (cluster.master_addr, cluster.master_port, cluster.launcher) == ("algo-1", 7777, "sagemaker")


def test_hosts_without_instance_groups_are_those_of_the_sdks_local_mode() -> None:
    config = {"hosts": ["algo-1-x7k2p", "algo-2-x7k2p"], "current_host": "algo-2-x7k2p"}
    cluster = Cluster.detect(
        {
            "SM_HOSTS": json.dumps(config["hosts"]),
            "SM_CURRENT_HOST": "algo-2-x7k2p",
            "SM_RESOURCE_CONFIG": json.dumps(config),
            "SM_DISTRIBUTION_INSTANCE_GROUPS": '["homogeneousCluster"]',
        }
    )
    assert (cluster.rank, cluster.hosts) == (1, ("algo-1-x7k2p", "algo-2-x7k2p"))


def test_v3s_dialect_names_the_meeting_place() -> None:
    cluster = Cluster.detect(V3)
    assert (cluster.rank, cluster.world_size, cluster.host) == (1, 2, "algo-2")
    assert (cluster.master_addr, cluster.master_port) == ("algo-1", 7778)
    assert cluster.sources["master_port"] == "SM_MASTER_PORT=7778"


def test_master_addr_of_the_user_wins() -> None:
    cluster = Cluster.detect(V3 | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"})
    assert (cluster.master_addr, cluster.master_port) == ("10.0.0.1", 1234)


def test_resource_config_serves_where_the_rest_is_missing() -> None:
    cluster = Cluster.detect({"SM_RESOURCE_CONFIG": V2["SM_RESOURCE_CONFIG"]})
    assert (cluster.rank, cluster.world_size, cluster.host) == (1, 3, "algo-10")


def test_channels_alone_make_no_sagemaker_job() -> None:
    assert Cluster.detect({"SM_CHANNEL_TRAINING": "/data", "SM_MODEL_DIR": "/model"}).launcher == "single"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (V2 | {"SM_CURRENT_HOST": "algo-9"}, r"SM_CURRENT_HOST=algo-9 is not one of SM_HOSTS=\["),
        ({"SM_HOSTS": '["algo-1"]'}, r"SM_HOSTS=.* is set, but SM_CURRENT_HOST or SM_RESOURCE_CONFIG is not"),
        ({"SM_CURRENT_HOST": "algo-1"}, "SM_CURRENT_HOST=algo-1 is set, but SM_HOSTS or SM_RESOURCE_CONFIG is not"),
        (V3 | {"SM_HOST_COUNT": "3"}, r"SM_HOST_COUNT=3, but SM_HOSTS=.* names 2"),
        (V3 | {"SM_CURRENT_HOST_RANK": "0"}, "SM_CURRENT_HOST_RANK=0, but SM_CURRENT_HOST=algo-2 is number 1"),
        (V2 | {"SM_HOSTS": "algo-1,algo-2"}, "SM_HOSTS=algo-1,algo-2 is not JSON .* expected a JSON list"),
        (V2 | {"SM_HOSTS": "[]"}, r"SM_HOSTS=\[\]: expected a JSON list"),
        (V2 | {"SM_HOSTS": '{"a": 1}'}, "expected a JSON list of host names"),
        (V2 | {"SM_HOSTS": '["algo-10","algo-10"]'}, "names a host twice"),
        (V3 | {"SM_MASTER_PORT": "seven"}, "SM_MASTER_PORT=seven: expected a whole number"),
        (
            {"SM_RESOURCE_CONFIG": '{"hosts": ["a"]}'},
            "expected the JSON object of resourceconfig.json, with current_host",
        ),
        ({"SM_RESOURCE_CONFIG": "[]"}, "expected the JSON object of resourceconfig.json"),
        (V2 | {"SM_DISTRIBUTION_INSTANCE_GROUPS": "7"}, "SM_DISTRIBUTION_INSTANCE_GROUPS=7: expected instance groups"),
        (V2 | {"WORLD_SIZE": "3"}, "WORLD_SIZE=3 is set, but RANK, LOCAL_RANK, .* are not"),
    ],
)
def test_partial_or_contradictory_input_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        Cluster.detect(environ)
