"""Tag mails to a help desk: a GRU reader is tuned on top of frozen word vectors, a checkpoint kept for each epoch."""

import argparse
import tempfile

import torch
from finetune_engine import initialize
from help_mail import TOPICS, HelpDesk
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class MailReader(nn.Module):
    """Reads a mail both ways and sums up what it attends to."""

    def __init__(self, vectors, hidden):
        super().__init__()
        self.vocabulary = nn.Embedding(*vectors.shape)
        self.vocabulary.weight.data.copy_(vectors)
        self.reader = nn.GRU(vectors.shape[1], hidden, batch_first=True, bidirectional=True)
        self.attention = nn.Linear(2 * hidden, 1)
        self.dropout = nn.Dropout(0.1)
        self.tag = nn.Linear(2 * hidden, len(TOPICS))

    def forward(self, mails):
        states, _ = self.reader(self.vocabulary(mails))
        weights = self.attention(states).softmax(dim=1)
        return self.tag(self.dropout((weights * states).sum(dim=1)))

    def freeze_vocabulary(self):
        self.vocabulary.requires_grad_(False)
        return self


def evaluate(engine, mails, topics):
    engine.module.eval()
    with torch.no_grad():
        logits = engine(mails)
    engine.module.train()
    return nn.functional.cross_entropy(logits, topics).item(), (logits.argmax(1) == topics).float().mean().item()


def finetune(engine, loader, test, epochs, folder):
    engine.module.train()
    for epoch in range(1, epochs + 1):
        for mails, topics in loader:
            loss = nn.functional.cross_entropy(engine(mails), topics)
            engine.train_step(loss)
        test_loss, accuracy = evaluate(engine, *test)
        path = engine.save_checkpoint(folder, f"epoch-{epoch}")
        size = path.stat().st_size / 1024
        print(f"epoch {epoch}: test loss {test_loss:.3f}, accuracy {accuracy:.1%}; {path.name} has {size:.0f} KiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--mails", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=24)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=60)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    desk = HelpDesk(args.seed)
    model = MailReader(desk.word_vectors(16), args.hidden).freeze_vocabulary()
    engine = initialize(model, lr=args.lr)
    loader = DataLoader(TensorDataset(*desk.mails(args.mails)), batch_size=32, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        finetune(engine, loader, desk.mails(300), args.epochs, folder)


if __name__ == "__main__":
    main()
