"""The parts that the recipe of torchtune in torchtune_recipe.py names: a tokenizer of words, and texts with answers."""

from tiny import sentences

IGNORED = -100


class Words:
    """Numbers the words of all sentences."""

    pad_id = 0

    def __init__(self):
        words = sorted({word for text in sentences(500, 0) for word in text.split()})
        self.numbers = {word: number for number, word in enumerate(words, 2)}

    def encode(self, text):
        """The numbers of the words; 1 for one that is unknown."""
        return [self.numbers.get(word, 1) for word in text.split()]


def answers(tokenizer, count, seed):
    """Sentences whose second half is learned; the first half is the prompt."""
    samples = []
    for text in sentences(count, seed):
        tokens = tokenizer.encode(text)
        prompt = len(tokens) // 2
        samples.append({"tokens": tokens, "labels": [IGNORED] * prompt + tokens[prompt:]})
    return samples
