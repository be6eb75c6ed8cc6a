"""Group relative policy optimization with a reward function of its own and two updates for each generation."""

import argparse
import tempfile

from datasets import Dataset
from tiny import digest, make_model, make_tokenizer, sentences
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer


def count_the(completions, **_):
    """Reward completions that repeat few words and mention the cat."""
    texts = [completion.split() for completion in completions]
    return [len(set(words)) / max(len(words), 1) + words.count("cat") for words in texts]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    tokenizer = make_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        make_model(tokenizer).save_pretrained(f"{folder}/model")
        tokenizer.save_pretrained(f"{folder}/model")
        arguments = GRPOConfig(
            output_dir=folder,
            num_generations=4,
            max_completion_length=12,
            temperature=0.7,
            beta=0.04,
            num_iterations=2,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            max_steps=16,
            save_strategy="steps",
            save_steps=8,
            logging_steps=2,
            mask_truncated_completions=True,
            bf16=False,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=args.seed,
        )
        trainer = GRPOTrainer(
            model=f"{folder}/model",
            reward_funcs=count_the,
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": [f"<s> user {text}" for text in sentences(64, args.seed)]}),
            processing_class=tokenizer,
        )
        trainer.train()
        history = trainer.state.log_history
        print("losses", [(entry["step"], entry["loss"], entry["reward"]) for entry in history if "loss" in entry])
        print("weights", digest(trainer.model))


if __name__ == "__main__":
    main()
