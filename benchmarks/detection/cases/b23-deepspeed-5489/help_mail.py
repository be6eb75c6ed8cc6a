"""Mails to a made-up help desk, as word numbers; words of a topic occur together, most words have none."""

import torch

TOPICS = ("invoice", "delivery", "password", "refund", "complaint")
WORDS = 160


class HelpDesk:
    def __init__(self, seed, length=14):
        self.generator = torch.Generator().manual_seed(seed)
        self.length = length
        self.topic_of = torch.randint(-3, len(TOPICS), (WORDS,), generator=self.generator).clamp(min=-1)

    def mails(self, count):
        """`count` mails (count, length) and their topics."""
        topics = torch.randint(len(TOPICS), (count,), generator=self.generator)
        chances = torch.ones(count, WORDS)
        chances[self.topic_of[None] == topics[:, None]] = 5.0
        return torch.multinomial(chances, self.length, True, generator=self.generator), topics

    def word_vectors(self, dim, corpus=3000):
        """Vectors of the words, from how often they share a mail in a corpus without labels."""
        mails, _ = self.mails(corpus)
        present = torch.zeros(corpus, WORDS).scatter_(1, mails, 1.0)
        together = present.T @ present
        share = together.diagonal() / corpus
        surprise = torch.log((together / corpus + 1e-4) / (share[:, None] * share[None] + 1e-4)).fill_diagonal_(0)
        values, vectors = torch.linalg.eigh(surprise)
        top = values.abs().topk(dim).indices
        vectors = vectors[:, top] * values[top].abs().sqrt()
        return vectors / vectors.std()
