"""Songs of made-up birds: syllables that mostly follow each other in an order of the species."""

import torch

SYLLABLES = 12
MASK = SYLLABLES


class Aviary:
    def __init__(self, seed, species=2):
        self.generator = torch.Generator().manual_seed(seed)
        self.successors = torch.stack([torch.randperm(SYLLABLES, generator=self.generator) for _ in range(species)])

    def record(self, count, length=16, slips=0.05):
        """`count` songs (count, length); a bird slips now and then."""
        species = torch.randint(len(self.successors), (count,), generator=self.generator)
        song = [torch.randint(SYLLABLES, (count,), generator=self.generator)]
        for _ in range(length - 1):
            following = self.successors[species, song[-1]]
            slip = torch.rand(count, generator=self.generator) < slips
            other = torch.randint(SYLLABLES, (count,), generator=self.generator)
            song.append(torch.where(slip, other, following))
        return torch.stack(song, 1)

    def masked(self, songs, share=0.2):
        """The songs with some syllables hidden, and which these are; at least one of each song."""
        hidden = torch.rand(songs.shape, generator=self.generator) < share
        hidden[:, songs.shape[1] // 2] = True
        return songs.masked_fill(hidden, MASK), hidden
