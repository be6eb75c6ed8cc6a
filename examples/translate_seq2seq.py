"""An encoder-decoder transformer that translates between English and an invented language with another word order."""

import argparse
import random
from functools import partial

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

PAD, BOS, EOS = 0, 1, 2

LEXICON = {
    "the": "ka", "a": "mu", "two": "duo", "farmer": "velor", "sister": "nadim", "fox": "ruti", "teacher": "olban",
    "bread": "pasik", "letter": "skriva", "boat": "navo", "old": "grun", "small": "piti", "red": "rosa",
    "buys": "kompe", "finds": "trova", "hides": "kela", "today": "oru", "never": "nim",
}  # fmt: skip
PEOPLE, THINGS = ["farmer", "sister", "fox", "teacher"], ["bread", "letter", "boat"]


def noun_phrase(rng, nouns):
    determiner, noun = rng.choice(["the", "a", "two"]), rng.choice(nouns)
    adjectives = rng.sample(["old", "small", "red"], rng.choice([0, 0, 1, 2]))
    # the invented language puts the noun first, then its adjectives, then the determiner
    return [determiner, *adjectives, noun], [noun, *adjectives, determiner]


def make_pair(rng):
    subject, subject_out = noun_phrase(rng, PEOPLE)
    thing, thing_out = noun_phrase(rng, THINGS)
    verb, adverb = rng.choice(["buys", "finds", "hides"]), rng.choice([[], ["today"], ["never"]])
    source = [*adverb, *subject, verb, *thing]
    target = [*subject_out, *thing_out, verb, *adverb]  # the verb and the adverb come last
    return source, [LEXICON[word] for word in target]


class Vocab:
    def __init__(self, words):
        self.words = ["<pad>", "<bos>", "<eos>", *words]
        self.ids = {word: i for i, word in enumerate(self.words)}

    def __len__(self):
        return len(self.words)

    def encode(self, words):
        return torch.tensor([BOS, *(self.ids[w] for w in words), EOS])

    def decode(self, ids):
        ids = ids[1:]
        ids = ids[: ids.index(EOS)] if EOS in ids else ids
        return [self.words[i] for i in ids]


def collate(pairs, source_vocab, target_vocab):
    source = pad_sequence([source_vocab.encode(s) for s, _ in pairs], batch_first=True, padding_value=PAD)
    target = pad_sequence([target_vocab.encode(t) for _, t in pairs], batch_first=True, padding_value=PAD)
    return source, target


class Translator(nn.Module):
    def __init__(self, source_size, target_size, d_model=64, nhead=4, layers=2, dropout=0.05, max_len=32):
        super().__init__()
        self.source_embedding = nn.Embedding(source_size, d_model, padding_idx=PAD)
        self.target_embedding = nn.Embedding(target_size, d_model, padding_idx=PAD)
        self.position = nn.Parameter(torch.randn(max_len, d_model) * 0.1)
        block = {"d_model": d_model, "nhead": nhead, "dim_feedforward": 4 * d_model, "dropout": dropout}
        encoder_layer = nn.TransformerEncoderLayer(**block, batch_first=True)
        decoder_layer = nn.TransformerDecoderLayer(**block, batch_first=True)
        self.encoder = nn.TransformerEncoder(encoder_layer, layers, enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder_layer, layers)
        self.generator = nn.Linear(d_model, target_size)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)

    def encode(self, source):
        padding = source == PAD
        x = self.source_embedding(source) + self.position[: source.size(1)]
        return self.encoder(x, src_key_padding_mask=padding), padding

    def decode(self, target, memory, memory_padding):
        size = target.size(1)
        future = torch.ones(size, size, dtype=torch.bool, device=target.device).triu(1)
        x = self.target_embedding(target) + self.position[:size]
        x = self.decoder(
            x,
            memory,
            tgt_mask=future,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=memory_padding,
        )
        return self.generator(x)

    def forward(self, source, target):
        memory, padding = self.encode(source)
        return self.decode(target, memory, padding)

    @torch.no_grad()
    def generate(self, source, max_new_tokens):
        """Greedy decoding; what follows the end of a sentence is padding."""
        memory, padding = self.encode(source)
        output = torch.full((source.size(0), 1), BOS, device=source.device)
        finished = torch.zeros(source.size(0), dtype=torch.bool, device=source.device)
        for _ in range(max_new_tokens):
            token = self.decode(output, memory, padding)[:, -1].argmax(-1).masked_fill(finished, PAD)
            output = torch.cat([output, token[:, None]], dim=1)
            finished |= token == EOS
            if finished.all():
                break
        return output


def noam(d_model, warmup, factor):
    def rate(step):
        step += 1
        return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)

    return rate


def run_epoch(model, loader, criterion, optimizer=None, scheduler=None):
    training = optimizer is not None
    model.train(training)
    total, hits, tokens = 0.0, 0, 0
    with torch.set_grad_enabled(training):
        for source, target in loader:
            logits = model(source, target[:, :-1])
            labels = target[:, 1:]
            loss = criterion(logits.transpose(1, 2), labels)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                scheduler.step()
            real = labels != PAD
            hits += ((logits.argmax(-1) == labels) & real).sum().item()
            tokens += real.sum().item()
            total += loss.item()
    return total / len(loader), hits / tokens


def main(seed, epochs, warmup):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    source_vocab, target_vocab = Vocab(LEXICON), Vocab(LEXICON.values())
    collate_fn = partial(collate, source_vocab=source_vocab, target_vocab=target_vocab)
    train_loader = DataLoader([make_pair(rng) for _ in range(960)], 64, shuffle=True, collate_fn=collate_fn)
    val_pairs = [make_pair(rng) for _ in range(96)]
    val_loader = DataLoader(val_pairs, 96, collate_fn=collate_fn)

    d_model = 64
    model = Translator(len(source_vocab), len(target_vocab), d_model)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    scheduler = LambdaLR(optimizer, noam(d_model, warmup, factor=0.25))

    for epoch in range(1, epochs + 1):
        train_loss, train_acc = run_epoch(model, train_loader, criterion, optimizer, scheduler)
        val_loss, val_acc = run_epoch(model, val_loader, criterion)
        source, _ = next(iter(val_loader))
        model.eval()
        guesses = [target_vocab.decode(row) for row in model.generate(source, max_new_tokens=14).tolist()]
        exact = sum(guess == target for guess, (_, target) in zip(guesses, val_pairs, strict=True)) / len(val_pairs)
        print(
            f"epoch {epoch}: train loss {train_loss:.3f} acc {train_acc:.3f} "
            f"| val loss {val_loss:.3f} acc {val_acc:.3f} | {exact:.0%} of the sentences right"
        )
        print(f"    {' '.join(val_pairs[epoch][0])} -> {' '.join(guesses[epoch])}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=20, help="steps until the learning rate is highest")
    main(**vars(parser.parse_args()))
