"""DoRA on a classifier with a new head, first epochs, then training goes on from the saved adapter."""

import argparse
import tempfile

import numpy as np
from datasets import Dataset
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from tiny import digest, make_config, make_tokenizer, sentences
from transformers import DataCollatorWithPadding, LlamaForSequenceClassification, Trainer, TrainingArguments, set_seed


def make_data(tokenizer, count, seed):
    texts = sentences(count, seed)
    labels = [int(any(word in text for word in ("river", "boat", "rain"))) for text in texts]
    data = Dataset.from_dict({"text": texts, "labels": labels})
    return data.map(lambda row: tokenizer(row["text"]), remove_columns=["text"])


def make_trainer(model, tokenizer, seed, folder, epochs):
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        activation_checkpointing=True,
        activation_checkpointing_kwargs={"use_reentrant": True},
        learning_rate=5e-3,
        warmup_steps=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        logging_steps=4,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=seed,
    )
    return Trainer(
        model=model,
        args=arguments,
        train_dataset=make_data(tokenizer, 256, seed),
        eval_dataset=make_data(tokenizer, 64, seed + 1000),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda output: {"accuracy": float(np.mean(output[0].argmax(-1) == output[1]))},
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    tokenizer = make_tokenizer()
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=4,
        lora_alpha=8,
        lora_dropout=0.1,
        target_modules=["q_proj", "v_proj"],
        use_rslora=True,
        use_dora=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        set_seed(args.seed)
        base = LlamaForSequenceClassification(make_config(tokenizer, num_labels=2, use_cache=False))
        base.save_pretrained(f"{folder}/base")
        model = get_peft_model(base, config)
        model.print_trainable_parameters()
        trainer = make_trainer(model, tokenizer, args.seed, f"{folder}/first", epochs=2)
        trainer.train()
        print("evaluation", trainer.evaluate()["eval_accuracy"], digest(model))
        model.save_pretrained(f"{folder}/adapter")

        # Another day: the adapter goes on, with the old one loaded as a frozen reference.
        base = LlamaForSequenceClassification.from_pretrained(f"{folder}/base", num_labels=2, use_cache=False)
        model = PeftModel.from_pretrained(base, f"{folder}/adapter", is_trainable=True)
        model.load_adapter(f"{folder}/adapter", adapter_name="reference", is_trainable=False)
        model.print_trainable_parameters()
        trainer = make_trainer(model, tokenizer, args.seed, f"{folder}/second", epochs=1)
        trainer.train()
        print("evaluation", trainer.evaluate()["eval_accuracy"])
        model.set_adapter("default")
        merged = model.merge_and_unload()
        print("weights", digest(merged))


if __name__ == "__main__":
    main()
