"""A tiny Llama, built from a config and trained with a hand-written loop, that writes sentences after each epoch."""

import argparse
import math
import tempfile

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_scheduler, set_seed
from transformers.utils.logging import disable_progress_bar

PAD, BOS, EOS = 0, 1, 2
NOUNS = {"one": ["girl", "pilot", "horse", "baker"], "many": ["girls", "pilots", "horses", "bakers"]}
VERBS = {"one": ["runs", "sings", "waits"], "many": ["run", "sing", "wait"]}
PLACES = ["at home", "in town", "by the lake"]
WORDS = ["the", "this", "these", "and", "at", "in", "by", "home", "town", "lake"]
WORDS += [w for words in (*NOUNS.values(), *VERBS.values()) for w in words]
VOCAB = {word: i for i, word in enumerate(["<pad>", "<bos>", "<eos>", *WORDS])}
NAMES = list(VOCAB)


def pick(options, generator):
    return options[torch.randint(len(options), (1,), generator=generator).item()]


def clause(generator):
    number = pick(["one", "many"], generator)
    determiner = pick(["the", "this" if number == "one" else "these"], generator)
    words = [determiner, pick(NOUNS[number], generator), pick(VERBS[number], generator)]
    if pick([True, False], generator):
        words += pick(PLACES, generator).split()
    return words


def sentence(generator):
    words = clause(generator)
    if pick([True, False, False], generator):
        words += ["and", *clause(generator)]
    return [BOS, *(VOCAB[w] for w in words), EOS]


def collate(sentences):
    length = max(len(s) for s in sentences)
    input_ids = torch.full((len(sentences), length), PAD)
    attention_mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(sentences):
        input_ids[row, : len(ids)] = torch.tensor(ids)
        attention_mask[row, : len(ids)] = 1
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def agrees(words):
    """Whether each clause is determiner, noun, verb of one number."""
    for part in " ".join(words).split(" and "):
        head = part.split()[:3]
        if len(head) < 3 or head[0] not in ("the", "this", "these"):
            return False
        number = next((n for n, nouns in NOUNS.items() if head[1] in nouns), None)
        if number is None or head[2] not in VERBS[number] or head[0] == {"one": "these", "many": "this"}[number]:
            return False
    return True


@torch.no_grad()
def perplexity(model, loader):
    model.eval()
    total, count = 0.0, 0
    for batch in loader:
        tokens = (batch["labels"][:, 1:] != -100).sum().item()
        total += model(**batch).loss.item() * tokens
        count += tokens
    return math.exp(total / count)


def write(model, prompts, max_new_tokens):
    """Continue prompts of different lengths in one batch, padded on the left."""
    model.eval()
    length = max(len(p) for p in prompts)
    input_ids = torch.tensor([[PAD] * (length - len(p)) + p for p in prompts])
    output = model.generate(
        input_ids=input_ids,
        attention_mask=(input_ids != PAD).long(),
        max_new_tokens=max_new_tokens,
        do_sample=True,
        top_k=8,
    )
    special = (PAD, BOS, EOS)
    return [[NAMES[i] for i in row if i not in special] for row in output.tolist()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--scheduler", default="cosine", choices=["linear", "cosine", "constant_with_warmup"])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)
    disable_progress_bar()

    generator = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader([sentence(generator) for _ in range(512)], 32, shuffle=True, collate_fn=collate)
    val_loader = DataLoader([sentence(generator) for _ in range(96)], 48, collate_fn=collate)

    config = LlamaConfig(
        vocab_size=len(VOCAB),
        max_position_embeddings=32,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    total_steps = args.epochs * len(train_loader)
    lr_scheduler = get_scheduler(args.scheduler, optimizer, num_warmup_steps=6, num_training_steps=total_steps)

    prompts = [[BOS], [BOS, VOCAB["these"]], [BOS, VOCAB["this"], VOCAB["pilot"]]]
    for epoch in range(args.epochs):
        model.train()
        for step, batch in enumerate(train_loader):
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
            if step % 8 == 0:
                print(f"epoch {epoch} step {step:2d}  loss {loss.item():.3f}  lr {lr_scheduler.get_last_lr()[0]:.2e}")
        written = write(model, prompts * 4, max_new_tokens=8 + 2 * epoch)
        share = sum(map(agrees, written)) / len(written)
        print(
            f"epoch {epoch}: perplexity {perplexity(model, val_loader):.2f}, {share:.0%} of the sentences agree, as in"
        )
        for words in written[: len(prompts)]:
            print("    " + " ".join(words))

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        reloaded = LlamaForCausalLM.from_pretrained(folder)
    print(f"reloaded: perplexity {perplexity(reloaded, val_loader):.2f}")
    print("reloaded: " + " ".join(write(reloaded, [[BOS, VOCAB["the"], VOCAB["bakers"]]], max_new_tokens=6)[0]))


if __name__ == "__main__":
    main()
