"""Shards in S3 are the same as shards in a directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from smddp.data.shards import ShardedDataset, ShardOrder
from smddp.errors import DataError
from tests.smddp.data.shards.by_hand import fill, numbered
from tests.torture.s3_server import Server, s3_server

pytestmark = pytest.mark.seaweedfs


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with s3_server(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.mark.parametrize("kind", ["tar", "jsonl"])
@pytest.mark.slow
def test_gives_the_same_batches_as_a_directory_and_resumes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    files = numbered([600, 40, 300], kind=kind)
    here = ShardedDataset(fill(tmp_path, files), window=96)
    client = server.client()
    client.create_bucket(Bucket=kind)
    for name, content in files.items():
        client.put_object(Bucket=kind, Key=f"data/{name}", Body=content)

    there = ShardedDataset(f"s3://{kind}/data", window=96)
    assert there.index == here.index
    order = ShardOrder(there, global_batch=24, rank=1, world_size=2)
    expected = [
        [record.parse() for record in batch] for batch in ShardOrder(here, global_batch=24, rank=1, world_size=2)
    ]
    for workers in (0, 2):
        loader = DataLoader(there.decoder, batch_sampler=order, num_workers=workers, collate_fn=list)  # type: ignore[arg-type]
        assert list(loader) == expected
    order.load_state_dict({**order.state_dict(), "consumed": 24 * 20})
    assert [[record.parse() for record in batch] for batch in order] == expected[20:]

    client.put_object(Bucket=kind, Key="data/part-000." + kind, Body=files["part-000." + kind][:-1] + b"?")
    with pytest.raises(DataError, match=f"part-000.{kind}"):  # as many bytes, but others
        list(order)
