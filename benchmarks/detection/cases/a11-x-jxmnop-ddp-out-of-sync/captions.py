"""Small pictures with one coloured thing in a corner, and captions that describe them in changing words."""

import random

import torch
from torch.utils.data import Dataset

COLOURS = {"red": (1, 0, 0), "green": (0, 1, 0), "blue": (0, 0, 1), "yellow": (1, 1, 0)}
THINGS = ("square", "cross", "bar", "frame")
PLACES = ("top left", "top right", "bottom left", "bottom right")
FILLERS = ("a", "the", "there is", "one", "small", "picture of", "in the", "at")
LEXICON = sorted({word for phrase in (*COLOURS, *THINGS, *PLACES, *FILLERS) for word in phrase.split()})
NUMBER = {word: number for number, word in enumerate(LEXICON, start=1)}
SIDE, LONGEST = 12, 12


def draw(colour, thing, place, rng):
    stamp = torch.zeros(5, 5)
    if thing == "square":
        stamp[1:4, 1:4] = 1
    elif thing == "cross":
        stamp[2, :] = stamp[:, 2] = 1
    elif thing == "bar":
        stamp[:, 1:3] = 1
    else:
        stamp[:] = 1
        stamp[1:4, 1:4] = 0
    top = rng.randrange(2) + (6 if "bottom" in place else 0)
    left = rng.randrange(2) + (6 if "right" in place else 0)
    picture = torch.zeros(3, SIDE, SIDE)
    picture[:, top : top + 5, left : left + 5] = torch.tensor(COLOURS[colour])[:, None, None] * stamp
    return picture


class CaptionedPictures(Dataset):
    """Pairs of a picture (3, SIDE, SIDE) and the word numbers of its caption, filled up with 0."""

    def __init__(self, number, seed):
        rng = random.Random(seed)
        noise = torch.Generator().manual_seed(seed)
        self.pairs = []
        for _ in range(number):
            colour, thing, place = rng.choice(list(COLOURS)), rng.choice(THINGS), rng.choice(PLACES)
            text = f"{rng.choice(FILLERS)} {colour} {thing} {rng.choice(FILLERS)} {place}"
            words = [NUMBER[word] for word in text.split()]
            picture = draw(colour, thing, place, rng)
            picture += 0.1 * torch.randn(picture.shape, generator=noise)
            self.pairs.append((picture, torch.tensor(words + [0] * (LONGEST - len(words)))))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]
