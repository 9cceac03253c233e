"""Prints the records of each step that come through the pipes of a channel, up to a step, and the place after it."""

import json

from torch.utils.data import DataLoader

import smddp
from smddp.data.pipes import PipeDataset, PipeOrder

job = smddp.Job.detect()
place, last = job.hyperparameters.get("place"), job.hyperparameters["last"]
cluster = job.cluster
dataset = PipeDataset(job.inputs["training"], format="jsonl", decode=lambda record: record["n"])
order = PipeOrder(
    dataset,
    global_batch=12,
    rank=cluster.rank,
    world_size=cluster.world_size,
    local_world_size=cluster.local_world_size,
)
if place is not None:
    order.load_state_dict(place)
loader = DataLoader(dataset.decoder, batch_sampler=order, num_workers=1)
step = 0
for epoch in range(order.epoch, 2):
    order.start_epoch(epoch)
    for batch in loader:
        print(f"epoch {epoch} step {order.consumed // 12} rank {cluster.rank} takes {batch.tolist()}", flush=True)
        order.advance()
        step += 1
        if step == last:
            print(f"place {json.dumps(order.state_dict())}")
            raise SystemExit
