"""Sentences of a made-up language. The tag of an ambiguous word depends on the word before it."""

import random

import torch

TAGS = ("article", "noun", "verb", "adverb", "particle")
ARTICLES, PARTICLES = range(1, 4), range(4, 6)
NOUNS, VERBS, BOTH, ADVERBS = range(6, 26), range(26, 40), range(40, 64), range(64, 72)
WORDS = 72
"""Number 0 stands before and behind each sentence."""


class Newspaper:
    """Sentences of one to `clauses` clauses, word by word with their tags."""

    def __init__(self, seed, clauses):
        self.rng = random.Random(seed)
        self.clauses = clauses

    def clause(self):
        rng = self.rng
        yield rng.choice(ARTICLES), 0
        yield rng.choice(NOUNS if rng.random() < 0.4 else BOTH), 1
        if rng.random() < 0.3:
            yield rng.choice(ADVERBS), 3
        yield rng.choice(PARTICLES), 4
        yield rng.choice(VERBS if rng.random() < 0.4 else BOTH), 2
        if rng.random() < 0.3:
            yield rng.choice(ADVERBS), 3

    def sentence(self):
        return [pair for _ in range(self.rng.randint(1, self.clauses)) for pair in self.clause()]

    def page(self, sentences):
        """Triples of neighbouring words (words, 3) and the tags of those in the middle, of all sentences in a row."""
        triples, tags = [], []
        for _ in range(sentences):
            pairs = self.sentence()
            words = [0, *(word for word, _ in pairs), 0]
            triples += zip(words, words[1:], words[2:], strict=False)
            tags += [tag for _, tag in pairs]
        return torch.tensor(triples), torch.tensor(tags)
