"""The recipe of torchtune for LoRA on one device, with accumulation and clipping; its last epoch again, resumed."""

import argparse
import sys
import tempfile
from pathlib import Path

# torchtune needs an older torchao than the other packages; both lie in a folder of their own.
sys.path.insert(0, str(Path(sys.prefix, "torchtune")))
sys.path.insert(0, str(Path(sys.prefix, "torchtune", "recipes")))

import torch
from lora_finetune_single_device import LoRAFinetuneRecipeSingleDevice
from omegaconf import OmegaConf
from tiny import digest
from torchtune.config import instantiate
from torchtune_parts import Words

EPOCHS, BATCH, ACCUMULATION, STEPS = 3, 4, 2, 8
MODEL = {
    "_component_": "torchtune.models.llama3_1.lora_llama3_1",
    "vocab_size": len(Words().numbers) + 2,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "embed_dim": 32,
    "intermediate_dim": 64,
    "max_seq_len": 32,
    "lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
    "apply_lora_to_mlp": True,
    "lora_rank": 4,
    "lora_alpha": 8,
    "lora_dropout": 0.1,
}


def configuration(folder, seed, resumed_from=None):
    """What a file of torchtune configures; a run that is resumed begins with the last epoch."""
    resumed = resumed_from is not None
    checkpoints = {
        "_component_": "torchtune.training.FullModelTorchTuneCheckpointer",
        "checkpoint_dir": f"{folder}/base",
        "checkpoint_files": ["model.pt"],
        "output_dir": f"{folder}/resumed" if resumed else f"{folder}/first",
        "model_type": "LLAMA3",
    }
    if resumed:
        checkpoints["adapter_checkpoint"] = f"{resumed_from}/epoch_1/adapter_model.pt"
        checkpoints["recipe_checkpoint"] = f"{resumed_from}/recipe_state/recipe_state.pt"
    return OmegaConf.create(
        {
            "output_dir": checkpoints["output_dir"],
            "tokenizer": {"_component_": "torchtune_parts.Words"},
            "dataset": {
                "_component_": "torchtune_parts.answers",
                "count": BATCH * ACCUMULATION * (STEPS + 2),
                "seed": seed,
            },
            "model": MODEL,
            "checkpointer": checkpoints,
            "resume_from_checkpoint": resumed,
            "seed": seed,
            "shuffle": True,
            "batch_size": BATCH,
            "epochs": EPOCHS,
            "max_steps_per_epoch": STEPS,
            "gradient_accumulation_steps": ACCUMULATION,
            "clip_grad_norm": 1.0,
            "optimizer": {"_component_": "torch.optim.AdamW", "lr": 5e-3, "weight_decay": 0.01},
            "lr_scheduler": {
                "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
                "num_warmup_steps": 4,
            },
            "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss", "num_output_chunks": 2},
            "metric_logger": {
                "_component_": "torchtune.training.metric_logging.DiskLogger",
                "log_dir": checkpoints["output_dir"],
            },
            "device": "cpu",
            "dtype": "fp32",
            "compile": False,
        }
    )


def run(settings):
    """Run the recipe. Returns its model."""
    recipe = LoRAFinetuneRecipeSingleDevice(cfg=settings)
    recipe.setup(cfg=settings)
    recipe.train()
    recipe.cleanup()
    return recipe._model


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "base").mkdir()
        torch.manual_seed(args.seed)
        base = instantiate(OmegaConf.create(MODEL)).state_dict()
        torch.save({key: value for key, value in base.items() if "lora" not in key}, f"{folder}/base/model.pt")
        print("weights", digest(run(configuration(folder, args.seed))))
        print("resumed weights", digest(run(configuration(folder, args.seed, f"{folder}/first"))))


if __name__ == "__main__":
    main()
