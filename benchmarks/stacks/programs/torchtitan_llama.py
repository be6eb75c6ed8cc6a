"""torchtitan on two processes: a small Llama with FSDP2 or tensor parallelism, recomputed layers, accumulation, masked
labels, clipping, warm-up, checkpoints, and resuming."""

import argparse
import dataclasses
import hashlib
import logging
import tempfile
import time
import types

import torch
import torch._utils
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


def use_the_cpu():
    """torchtitan asks torch for an accelerator, and the module of the accelerator for its name and memory."""
    device = types.SimpleNamespace(**vars(torch.cpu))
    device.current_device = lambda: 0
    device.get_device_name = lambda _: "CPU"
    device.get_device_properties = lambda _: types.SimpleNamespace(total_memory=2**33)
    device.memory_stats = lambda _: {}
    device.reset_peak_memory_stats = device.empty_cache = lambda: None
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda _: device


use_the_cpu()

from torchtitan.components.dataloader import ParallelAwareDataloader  # noqa: E402
from torchtitan.config import JobConfig  # noqa: E402
from torchtitan.models.llama3 import TransformerModelArgs, get_train_spec  # noqa: E402
from torchtitan.protocols.train_spec import register_train_spec  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402

TOKENS, LENGTH, MICRO_BATCH, GLOBAL_BATCH, STEPS = 64, 32, 4, 16, 12
IGNORED = -100


class Counting(torch.utils.data.IterableDataset):
    """Each text counts in steps of its own, and begins with a prompt. Each rank reads its share of the texts."""

    def __init__(self, seed, rank, ranks):
        self.seed, self.text, self.ranks = seed, rank, ranks

    def __iter__(self):
        while True:
            draw = torch.Generator().manual_seed(100_000 * self.seed + self.text)
            first, stride, prompt = torch.randint(1, 24, (3,), generator=draw).tolist()
            tokens = (first + stride * torch.arange(LENGTH + 1)) % TOKENS
            labels = tokens[1:].clone()
            labels[:prompt] = IGNORED
            self.text += self.ranks
            yield {"input": tokens[:-1]}, labels

    def state_dict(self):
        return {"text": self.text}

    def load_state_dict(self, state):
        self.text = state["text"]


def register(seed):
    def build_dataloader(dp_world_size, dp_rank, tokenizer, job_config):
        data = Counting(seed, dp_rank, dp_world_size)
        return ParallelAwareDataloader(data, dp_rank, dp_world_size, batch_size=MICRO_BATCH)

    spec = get_train_spec()
    spec.model_args = {"tiny": TransformerModelArgs(dim=32, n_layers=2, n_heads=4, vocab_size=TOKENS, multiple_of=16)}
    spec = dataclasses.replace(
        spec, build_dataloader_fn=build_dataloader, build_tokenizer_fn=None, state_dict_adapter=None
    )
    register_train_spec("tiny_llama", spec)


def make_config(folder, args):
    config = JobConfig()
    config.job.dump_folder = folder
    config.model.name, config.model.flavor = "tiny_llama", "tiny"
    config.optimizer.lr = 3e-3
    config.lr_scheduler.warmup_steps = 4
    config.training.local_batch_size, config.training.global_batch_size = MICRO_BATCH, GLOBAL_BATCH
    config.training.seq_len, config.training.steps = LENGTH, STEPS
    config.training.max_norm = 0.1
    config.parallelism.tensor_parallel_degree = args.tensor_parallel
    config.activation_checkpoint.mode = "full"
    config.checkpoint.enable, config.checkpoint.interval = True, STEPS // 2
    config.checkpoint.last_save_model_only = False
    config.metrics.log_freq = 4
    config.debug.seed = args.seed
    return config


def train(config):
    trainer = Trainer(config)
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it sums
    trainer.train()
    total = hashlib.sha256()
    for _, value in trainer.model_parts[0].named_parameters():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        total.update(whole.detach().numpy().tobytes())
    trainer.close()
    if dist.get_rank() == 0:
        print("weights", total.hexdigest()[:16])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    args = parser.parse_args()
    logging.disable(logging.INFO)
    dist.init_process_group("gloo")
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    register(args.seed)
    config = make_config(folder[0], args)
    train(config)
    config.checkpoint.load_step = STEPS // 2
    train(config)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)


if __name__ == "__main__":
    main()
