"""Megatron Core on two processes: a small GPT with data, tensor or pipeline parallelism, its optimizer and schedule."""

import argparse
import hashlib
import time
from functools import partial

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode


class OnTheCpu(TorchFunctionMode):
    """Creates on the CPU what Megatron creates on a GPU, and calls it a tensor of a GPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.Tensor.cuda:
            return args[0]
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        result = function(*args, **kwargs)
        is_name = function is torch.Tensor.type and isinstance(result, str)
        return result.replace("torch.", "torch.cuda.") if is_name else result


def use_the_cpu():
    """Megatron asks torch.cuda for the device, its random state, and to wait for it."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.manual_seed = torch.manual_seed
    torch.cuda.get_rng_state = lambda device=None: torch.get_rng_state()
    torch.cuda.synchronize = lambda device=None: None
    import megatron.core.tensor_parallel.random as random_states

    random_states._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random_states._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


use_the_cpu()

from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.distributed import (  # noqa: E402
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler  # noqa: E402
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

TOKENS, LENGTH, MICRO_BATCH, MICRO_BATCHES, STEPS, RATE = 64, 32, 4, 2, 16, 3e-3


def texts(seed, rank, ranks):
    """Micro-batches of texts that count in steps of their own. Each rank reads its share."""
    number = rank
    while True:
        draw = torch.Generator().manual_seed(100_000 * seed + number)
        first, stride = torch.randint(1, 8, (2, MICRO_BATCH, 1), generator=draw)
        tokens = (first + stride * torch.arange(LENGTH + 1)) % TOKENS
        number += ranks
        yield tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def make_model(parallel):
    config = TransformerConfig(
        num_layers=2,
        hidden_size=32,
        num_attention_heads=4,
        hidden_dropout=0.1,
        attention_dropout=0.0,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        bias_activation_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        finalize_model_grads_func=finalize_model_grads,
    )
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(),
        vocab_size=TOKENS,
        max_sequence_length=LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=parallel == "pipeline",
    )
    if parallel == "tensor":  # fine-tuning that leaves the last layer as it is
        model.decoder.layers[-1].requires_grad_(False)
    buffers = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
    return DistributedDataParallel(config, buffers, model)


def make_optimizer(model):
    settings = OptimizerConfig(optimizer="adam", lr=RATE, min_lr=RATE / 30, weight_decay=0.01, clip_grad=0.5)
    optimizer = get_megatron_optimizer(settings, [model])
    schedule = OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=RATE,
        min_lr=RATE / 30,
        lr_warmup_steps=4,
        lr_decay_steps=STEPS,
        lr_decay_style="cosine",
        start_wd=0.01,
        end_wd=0.01,
        wd_incr_steps=0,
        wd_incr_style="constant",
    )
    return optimizer, schedule


def forward_step(batches, model):
    tokens, labels = next(batches)
    positions = torch.arange(LENGTH).expand(MICRO_BATCH, LENGTH)
    later = torch.triu(torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool), 1)
    return model(tokens, positions, later, labels=labels), mean_loss


def mean_loss(losses):
    loss = losses.float().mean()
    return loss, {"loss": loss.detach()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parallel", choices=("data", "tensor", "pipeline"), default="data")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    sizes = {"data": {}, "tensor": {"tensor_model_parallel_size": 2}, "pipeline": {"pipeline_model_parallel_size": 2}}
    parallel_state.initialize_model_parallel(**sizes[args.parallel])
    torch.manual_seed(args.seed)
    tensor_parallel.model_parallel_cuda_manual_seed(args.seed)
    model = make_model(args.parallel)
    optimizer, schedule = make_optimizer(model)
    run = partial(get_forward_backward_func(), seq_length=LENGTH, micro_batch_size=MICRO_BATCH, forward_only=False)
    rank, ranks = parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()
    batches = texts(args.seed, rank, ranks)
    is_last = dist.get_rank() == dist.get_world_size() - 1
    for step in range(STEPS):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = run(forward_step_func=forward_step, data_iterator=batches, model=model, num_microbatches=MICRO_BATCHES)
        _, norm, _ = optimizer.step()
        schedule.step(increment=1)
        if is_last and step % 4 == 3:
            rate = optimizer.param_groups[0]["lr"]
            print(f"step {step} loss {losses[-1]['loss'].item():.6f} norm {float(norm):.6f} rate {rate:.6f}")
    total = hashlib.sha256()
    for parameter in model.parameters():
        total.update(parameter.detach().numpy().tobytes())
    if is_last:
        print("weights", total.hexdigest()[:16])
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)


if __name__ == "__main__":
    with OnTheCpu():
        main()
