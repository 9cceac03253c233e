"""A driver that starts two ranks on each host itself, whatever the job's distribution."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import TensorDataset

import smddp


def train(gpu: int, node: int, nodes: int) -> None:
    dist.init_process_group("gloo", init_method="env://", rank=2 * node + gpu, world_size=2 * nodes)
    job = smddp.Job.detect(cluster=smddp.join().cluster)
    model = torch.nn.Linear(1, 1)
    trainer = smddp.Trainer(job, model, torch.optim.SGD(model.parameters(), lr=0.001))
    loader = trainer.loader(TensorDataset(torch.arange(24.0).reshape(24, 1)), batch_size=8)
    for _ in trainer.epochs(1):
        for (batch,) in trainer.batches(loader):
            trainer.step(trainer.model(batch).mean())
            print(f"rank {job.cluster.rank} on {job.cluster.host} takes {batch.int().flatten().tolist()}", flush=True)
    smddp.leave()
    dist.destroy_process_group()


if __name__ == "__main__":
    known = smddp.Cluster.detect()
    os.environ |= {"MASTER_ADDR": known.master_addr, "MASTER_PORT": str(known.master_port)}
    # mp.spawn, but for how it makes processes: a fork has imported torch already.
    mp.start_processes(train, args=(known.node_rank, known.node_count), nprocs=2, start_method="fork")
