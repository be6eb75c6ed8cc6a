"""Made-up tunes: random notes of one of four scales, of which some are wrong."""

import torch

STEPS = ((0, 2, 4, 5, 7, 9, 11), (1, 3, 6, 8, 10), (0, 2, 3, 5, 6, 8, 10), (1, 4, 7, 9, 11))
NOTES = 12


def compose(tunes, length, generator):
    """Notes [tunes, length], and 1.0 where a note is not in the scale of its tune."""
    scales = torch.zeros(len(STEPS), NOTES)
    for scale, steps in zip(scales, STEPS, strict=True):
        scale[list(steps)] = 1.0
    of_tune = scales[torch.randint(len(STEPS), (tunes,), generator=generator)]
    chances = of_tune / of_tune.sum(-1, keepdim=True) * 0.8 + (1 - of_tune) / (1 - of_tune).sum(-1, keepdim=True) * 0.2
    notes = torch.multinomial(chances, length, replacement=True, generator=generator)
    return notes, 1.0 - of_tune.gather(1, notes)
