"""Made-up complaints to a railway: bags of word numbers, each written about one department."""

import torch

DEPARTMENTS = ("delays", "tickets", "luggage", "catering", "access")
VOCABULARY = 300


def write_complaints(count, seed):
    """Texts of 8 to 30 words, a third of them typical of their department, and the numbers of the departments."""
    generator = torch.Generator().manual_seed(seed)
    habits = torch.Generator().manual_seed(2024)
    typical = torch.randperm(VOCABULARY, generator=habits)[: 24 * len(DEPARTMENTS)].view(len(DEPARTMENTS), 24)
    labels = torch.randint(len(DEPARTMENTS), (count,), generator=generator)
    texts = []
    for label in labels.tolist():
        length = int(torch.randint(8, 31, (), generator=generator))
        words = torch.randint(VOCABULARY, (length,), generator=generator)
        chosen = torch.rand(length, generator=generator) < 0.35
        words[chosen] = typical[label][torch.randint(24, (int(chosen.sum()),), generator=generator)]
        texts.append(words)
    return texts, labels


def bag(samples):
    """Collate for EmbeddingBag: all words in a row, where each text starts, and the labels."""
    texts, labels = zip(*samples, strict=True)
    lengths = torch.tensor([0] + [len(words) for words in texts[:-1]])
    return torch.cat(texts), lengths.cumsum(0), torch.stack(labels)
