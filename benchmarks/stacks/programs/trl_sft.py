"""Supervised fine-tuning on prompts and completions with LoRA: padded batches, or packed ones with --packing."""

import argparse
import tempfile

from datasets import Dataset
from peft import LoraConfig
from tiny import digest, make_model, make_tokenizer, sentences
from transformers import set_seed
from trl import SFTConfig, SFTTrainer


def make_data(count, seed):
    prompts, answers = sentences(count, seed), sentences(count, seed + 500)
    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": one}], "completion": [{"role": "assistant", "content": two}]}
            for one, two in zip(prompts, answers, strict=True)
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--packing", action="store_true")
    args = parser.parse_args()
    set_seed(args.seed)
    tokenizer = make_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        arguments = SFTConfig(
            output_dir=folder,
            max_length=64 if args.packing else 48,
            packing=args.packing,
            packing_strategy="wrapped",
            completion_only_loss=True,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=5e-3,
            lr_scheduler_type="cosine",
            warmup_steps=3,
            eval_strategy="steps",
            eval_steps=6,
            save_strategy="steps",
            save_steps=6,
            logging_steps=2,
            bf16=False,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=args.seed,
        )
        trainer = SFTTrainer(
            model=make_model(tokenizer),
            args=arguments,
            train_dataset=make_data(192 if args.packing else 96, args.seed),
            eval_dataset=make_data(32, args.seed + 1000),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        trainer.train()
        print("losses", [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry])
        print("evaluation", trainer.evaluate()["eval_loss"])
        print("weights", digest(trainer.model))


if __name__ == "__main__":
    main()
