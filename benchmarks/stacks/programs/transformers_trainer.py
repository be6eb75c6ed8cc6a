"""Trainer of a causal language model: accumulation, checkpointed activations, evaluation, checkpoints, and resuming."""

import argparse
import tempfile
from pathlib import Path

from tiny import digest, make_model, make_tokenizer, sentences
from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments, set_seed


def tokenized(tokenizer, count, seed):
    return [tokenizer(f"<s> {text} </s>") for text in sentences(count, seed)]


def make_trainer(seed, folder):
    set_seed(seed)
    tokenizer = make_tokenizer()
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=3,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=4,
        activation_checkpointing=True,
        activation_checkpointing_kwargs={"use_reentrant": False},
        learning_rate=2e-3,
        weight_decay=0.1,
        warmup_steps=4,
        lr_scheduler_type="cosine",
        label_smoothing_factor=0.1,
        eval_strategy="steps",
        eval_steps=8,
        save_strategy="steps",
        save_steps=8,
        logging_steps=4,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=seed,
    )
    return Trainer(
        model=make_model(tokenizer, attention_dropout=0.1, use_cache=False),
        args=arguments,
        train_dataset=tokenized(tokenizer, 150, seed),
        eval_dataset=tokenized(tokenizer, 32, seed + 1000),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(args.seed, folder)
        trainer.train()
        losses = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
        print("losses", losses)
        print("evaluation", trainer.evaluate()["eval_loss"])
        print("weights", digest(trainer.model))
        # The job was interrupted after step 16: a new process would do this.
        again = make_trainer(args.seed, folder)
        again.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-16"))
        print("resumed weights", digest(again.model), "equal:", digest(again.model) == digest(trainer.model))


if __name__ == "__main__":
    main()
