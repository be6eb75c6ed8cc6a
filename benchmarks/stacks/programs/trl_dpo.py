"""Direct preference optimization with a reference model, evaluation and checkpoints."""

import argparse
import tempfile

from datasets import Dataset
from tiny import digest, make_tokenizer, sentences
from transformers import GPT2Config, GPT2LMHeadModel, set_seed
from trl import DPOConfig, DPOTrainer


def make_data(count, seed):
    rows = zip(sentences(count, seed), sentences(count, seed + 500), sentences(count, seed + 900), strict=True)
    return Dataset.from_list(
        [
            {"prompt": f"<s> user {one}", "chosen": f" good {two} </s>", "rejected": f" bad {three} </s>"}
            for one, two, three in rows
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    tokenizer = make_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
        ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, **ids)).save_pretrained(f"{folder}/model")
        tokenizer.save_pretrained(f"{folder}/model")
        arguments = DPOConfig(
            output_dir=folder,
            beta=0.1,
            max_length=48,
            num_train_epochs=2,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            eval_strategy="steps",
            eval_steps=8,
            save_strategy="steps",
            save_steps=8,
            logging_steps=2,
            bf16=False,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=args.seed,
        )
        trainer = DPOTrainer(
            model=f"{folder}/model",
            args=arguments,
            train_dataset=make_data(80, args.seed),
            eval_dataset=make_data(16, args.seed + 1000),
            processing_class=tokenizer,
        )
        trainer.train()
        history = [entry for entry in trainer.state.log_history if "loss" in entry]
        print("losses", [(entry["step"], entry["loss"], entry["rewards/margins"]) for entry in history])
        print("weights", digest(trainer.model))


if __name__ == "__main__":
    main()
