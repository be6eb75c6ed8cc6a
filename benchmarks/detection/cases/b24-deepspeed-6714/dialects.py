"""Words of made-up languages, each with habits of its own: which letter likes to follow which."""

import torch

LETTERS, LANGUAGES = 20, 5


class Dialects:
    """Strings of letters (batch, length) and the language of each. All who give the same seed get the same ones."""

    def __init__(self, seed, sharpness=1.3):
        self.generator = torch.Generator().manual_seed(seed)
        habits = torch.Generator().manual_seed(4711)
        self.follow = (sharpness * torch.randn(LANGUAGES, LETTERS, LETTERS, generator=habits)).softmax(dim=-1)

    def batch(self, size, length):
        languages = torch.randint(LANGUAGES, (size,), generator=self.generator)
        letters = [torch.randint(LETTERS, (size,), generator=self.generator)]
        for _ in range(length - 1):
            chances = self.follow[languages, letters[-1]]
            letters.append(torch.multinomial(chances, 1, generator=self.generator).squeeze(1))
        return torch.stack(letters, dim=1), languages
