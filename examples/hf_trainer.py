"""transformers.Trainer with a tiny BERT, built from a config, on generated sequences."""

import argparse
import tempfile

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

CLS, SEP = 1, 2
FIRST_WORD = 3
VOCAB_SIZE = 103


class KeywordDataset(torch.utils.data.Dataset):
    """Sequences of words; the label is the word family (0, 1 or 2) that the sequence mentions most."""

    def __init__(self, size, length, seed):
        rng = np.random.default_rng(seed)
        words = rng.integers(FIRST_WORD + 30, VOCAB_SIZE, size=(size, length))
        self.labels = rng.integers(0, 3, size=size)
        for row, label in zip(words, self.labels, strict=True):
            places = rng.choice(length, size=6, replace=False)
            row[places] = FIRST_WORD + 10 * label + rng.integers(0, 10, size=6)
            other = (label + 1) % 3
            row[places[0]] = FIRST_WORD + 10 * other + rng.integers(0, 10)
        self.input_ids = np.hstack([np.full((size, 1), CLS), words, np.full((size, 1), SEP)])

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        ids = torch.tensor(self.input_ids[i], dtype=torch.long)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": int(self.labels[i])}


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    return {"accuracy": float((logits.argmax(-1) == labels).mean())}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)

    config = BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=32,
        num_labels=3,
    )
    model = BertForSequenceClassification(config)

    with tempfile.TemporaryDirectory() as output_dir:
        training_args = TrainingArguments(
            output_dir=output_dir,
            num_train_epochs=args.epochs,
            per_device_train_batch_size=args.batch_size,
            per_device_eval_batch_size=64,
            learning_rate=args.lr,
            weight_decay=0.01,
            warmup_steps=10,
            lr_scheduler_type="linear",
            eval_strategy="epoch",
            logging_steps=10,
            save_strategy="epoch",
            save_total_limit=1,
            load_best_model_at_end=True,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            seed=args.seed,
        )
        trainer = Trainer(
            model=model,
            args=training_args,
            train_dataset=KeywordDataset(640, 24, seed=args.seed),
            eval_dataset=KeywordDataset(192, 24, seed=args.seed + 1),
            compute_metrics=compute_metrics,
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
