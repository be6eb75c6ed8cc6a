"""Training with the kernels of Liger on CPU, where Triton interprets them: Trainer, or a loop that weights tokens."""

import argparse
import os
import tempfile

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss, apply_liger_kernel_to_gemma2
from tiny import digest, make_tokenizer, sentences
from transformers import (
    DataCollatorForLanguageModeling,
    Gemma2Config,
    Gemma2ForCausalLM,
    Trainer,
    TrainingArguments,
    set_seed,
)

STEPS, BATCH = 10, 4


def make_model(tokenizer):
    """A Gemma 2 of one layer with random weights."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    heads = {"num_key_value_heads": 1, "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=len(tokenizer),
            max_position_embeddings=64,
            attn_implementation="eager",
            use_cache=False,
            **sizes,
            **heads,
            **ids,
        )
    )


def train_with_trainer(model, tokenizer, seed, folder):
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH // 2,
        gradient_accumulation_steps=2,
        learning_rate=2e-3,
        warmup_steps=2,
        logging_steps=3,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=seed,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=[tokenizer(f"<s> {text} </s>") for text in sentences(STEPS * BATCH, seed)],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()
    print("losses", [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry])


def train_with_weights(model, tokenizer, seed):
    """Train with a weight for each token, as distillation and reinforcement learning do."""
    texts = sentences(STEPS * BATCH, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loss_fn = LigerFusedLinearCrossEntropyLoss(reduction="none")
    for step in range(STEPS):
        batch = tokenizer([f"<s> {text} </s>" for text in texts[BATCH * step : BATCH * (step + 1)]], padding=True)
        tokens, mask = torch.tensor(batch["input_ids"]), torch.tensor(batch["attention_mask"])
        states = model.model(input_ids=tokens, attention_mask=mask).last_hidden_state[:, :-1]
        targets = tokens[:, 1:].masked_fill(mask[:, 1:] == 0, -100)
        losses = loss_fn(model.lm_head.weight, states.flatten(0, 1), targets.flatten())
        weights = torch.linspace(0.5, 1.5, targets.shape[1]).expand_as(targets).flatten()
        loss = (losses * weights).sum() / mask[:, 1:].sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 3 == 0:
            print(f"step {step} loss {loss.item():.5f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loop", choices=("trainer", "weights"), default="trainer")
    args = parser.parse_args()
    set_seed(args.seed)
    tokenizer = make_tokenizer()
    apply_liger_kernel_to_gemma2(rope=False, geglu=False)  # interpreted, each kernel takes long
    model = make_model(tokenizer)
    if args.loop == "weights":
        train_with_weights(model, tokenizer, args.seed)
    else:
        with tempfile.TemporaryDirectory() as folder:
            train_with_trainer(model, tokenizer, args.seed, folder)
    print("weights", digest(model))


if __name__ == "__main__":
    main()
