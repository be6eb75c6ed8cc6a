"""Made-up postal addresses: characters, each with the part of the address that it belongs to."""

import random

import torch
from torch.nn.utils.rnn import pad_sequence

PARTS = ["other", "house", "street", "code", "town"]
IGNORE = -100
FIRST, LAST = ["Oak", "Mill", "Hill", "Bridge", "Church", "Lake"], ["Street", "Road", "Lane", "Way"]
TOWNS = ["Norwick", "Easton", "Marlow", "Ashby", "Felden", "Burcott"]
CHARACTERS = sorted(set("".join([*FIRST, *LAST, *TOWNS]) + "0123456789 ,"))


def address(rng):
    """Pieces of text and their parts, in one of three orders."""
    house = (str(rng.randrange(1, 200)), "house")
    street = (f"{rng.choice(FIRST)} {rng.choice(LAST)}", "street")
    code = (str(rng.randrange(1000, 10000)), "code")
    town = (rng.choice(TOWNS), "town")
    space, comma = (" ", "other"), (", ", "other")
    return rng.choice(
        [
            [house, space, street, comma, town, space, code],
            [street, space, house, comma, code, space, town],
            [code, space, town, comma, street, space, house],
        ]
    )


def examples(count, seed):
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        pieces = address(rng)
        characters = torch.tensor([CHARACTERS.index(c) + 1 for text, _ in pieces for c in text])
        tags = torch.tensor([PARTS.index(part) for text, part in pieces for _ in text])
        found.append((characters, tags))
    return found


def pad(batch):
    characters, tags = zip(*batch, strict=True)
    return {
        "characters": pad_sequence(characters, batch_first=True),
        "tags": pad_sequence(tags, batch_first=True, padding_value=IGNORE),
    }
