"""Made-up stretches of DNA; some hold a promoter: two boxes, each with an error now and then, at a certain distance."""

import torch

LENGTH = 48
BASES = "ACGT"
BOXES = ("TTGACA", "TATAAT")


def sequence_reads(count, generator):
    """Reads as numbers of bases, [count, LENGTH], and whether each holds a promoter, [count]."""
    reads = torch.randint(4, (count, LENGTH), generator=generator)
    labels = torch.randint(2, (count,), generator=generator)
    boxes = [torch.tensor([BASES.index(base) for base in box]) for box in BOXES]
    for read, label in zip(reads, labels, strict=True):
        if label:
            start = int(torch.randint(4, 14, (), generator=generator))
            gap = int(torch.randint(16, 19, (), generator=generator))
            for place, box in zip((start, start + 6 + gap), boxes, strict=True):
                exact = torch.rand(6, generator=generator) > 0.04
                read[place : place + 6] = torch.where(exact, box, read[place : place + 6])
    return reads, labels.float()
