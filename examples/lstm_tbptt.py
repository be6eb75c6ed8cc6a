# LSTM language model trained with truncated backpropagation through time.
# The hidden state is carried from chunk to chunk, the graph is not.

import argparse
import math

import numpy as np
import torch
import torch.nn as nn

parser = argparse.ArgumentParser(description="LSTM language model on text from a random Markov chain")
parser.add_argument("--vocab", type=int, default=50, help="number of tokens")
parser.add_argument("--emsize", type=int, default=64, help="size of the embeddings")
parser.add_argument("--nhid", type=int, default=128, help="hidden units per layer")
parser.add_argument("--nlayers", type=int, default=2, help="number of layers")
parser.add_argument("--dropout", type=float, default=0.1, help="dropout between layers (0 = none)")
parser.add_argument("--lr", type=float, default=4e-3, help="learning rate")
parser.add_argument("--clip", type=float, default=0.5, help="gradient clipping")
parser.add_argument("--epochs", type=int, default=4, help="upper epoch limit")
parser.add_argument("--batch_size", type=int, default=16, help="number of parallel streams")
parser.add_argument("--bptt", type=int, default=35, help="chunk length")
parser.add_argument("--log_interval", type=int, default=10, help="report interval")
parser.add_argument("--seed", type=int, default=0, help="random seed")
args = parser.parse_args()

torch.manual_seed(args.seed)
rng = np.random.default_rng(args.seed)

###############################################################################
# Data: each token has four likely successors
###############################################################################

successors = np.stack([rng.choice(args.vocab, size=4, replace=False) for _ in range(args.vocab)])


def random_walk(length):
    tokens = np.empty(length, dtype=np.int64)
    tokens[0] = 0
    choices = rng.choice(4, size=length, p=[0.6, 0.2, 0.1, 0.1])
    for i in range(1, length):
        tokens[i] = successors[tokens[i - 1], choices[i]]
    return torch.from_numpy(tokens)


def batchify(data, bsz):
    # one column per stream, so that row i + 1 continues row i
    nbatch = data.size(0) // bsz
    return data[: nbatch * bsz].view(bsz, -1).t().contiguous()


train_data = batchify(random_walk(18_000), args.batch_size)
val_data = batchify(random_walk(3_000), args.batch_size)

###############################################################################
# Model
###############################################################################


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid, nlayers, dropout):
        super().__init__()
        self.nhid = nhid
        self.nlayers = nlayers
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)

    def forward(self, input, hidden):
        emb = self.drop(self.encoder(input))
        output, hidden = self.rnn(emb, hidden)
        return self.decoder(self.drop(output)), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (
            weight.new_zeros(self.nlayers, bsz, self.nhid),
            weight.new_zeros(self.nlayers, bsz, self.nhid),
        )


model = RNNModel(args.vocab, args.emsize, args.nhid, args.nlayers, args.dropout)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

###############################################################################
# Training
###############################################################################


def repackage_hidden(h):
    return tuple(v.detach() for v in h)


def get_chunk(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].reshape(-1)


def evaluate(source):
    model.eval()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    with torch.no_grad():
        for i in range(0, source.size(0) - 1, args.bptt):
            data, targets = get_chunk(source, i)
            output, hidden = model(data, hidden)
            total_loss += len(data) * criterion(output.view(-1, args.vocab), targets).item()
    return total_loss / (len(source) - 1)


def generate(tokens, max_new_tokens):
    model.eval()
    hidden = model.init_hidden(tokens.size(0))
    output, words = tokens.t(), [tokens]
    with torch.no_grad():
        for _ in range(max_new_tokens):
            output, hidden = model(output, hidden)
            output = torch.multinomial(output[-1].softmax(dim=-1), 1).t()
            words.append(output.t())
    return torch.cat(words, dim=1)


def train(epoch):
    model.train()
    total_loss = 0.0
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt), start=1):
        data, targets = get_chunk(train_data, i)
        model.zero_grad()
        hidden = repackage_hidden(hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output.view(-1, args.vocab), targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()

        total_loss += loss.item()
        if batch % args.log_interval == 0:
            cur_loss = total_loss / args.log_interval
            print(f"| epoch {epoch} | batch {batch:3d} | loss {cur_loss:.3f} | ppl {math.exp(cur_loss):.2f}")
            total_loss = 0.0


for epoch in range(1, args.epochs + 1):
    train(epoch)
    val_loss = evaluate(val_data)
    print("-" * 60)
    print(f"| end of epoch {epoch} | valid loss {val_loss:.3f} | valid ppl {math.exp(val_loss):.2f}")
    print("| " + " ".join(map(str, generate(val_data[:4, :1].t(), 20)[0].tolist())))
    print("-" * 60)
