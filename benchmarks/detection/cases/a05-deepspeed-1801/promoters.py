"""Made-up DNA: a promoter holds some copies of two boxes of letters, with mutations; the rest is random."""

import torch

LETTERS = 4
BOXES = torch.tensor([[3, 3, 2, 0, 1, 0], [3, 0, 3, 0, 0, 3]])
COPIES, MUTATIONS = 3, 0.08


def sequences(number, length, generator):
    """Letters (number, length) and whether each sequence is a promoter (1.0) or random (0.0)."""
    letters = torch.randint(LETTERS, (number, length), generator=generator)
    promoter = torch.rand(number, generator=generator) < 0.5
    room = length // COPIES
    for row in promoter.nonzero().flatten().tolist():
        for copy in range(COPIES):
            box = BOXES[torch.randint(len(BOXES), (), generator=generator)]
            other = torch.randint(LETTERS, box.shape, generator=generator)
            box = torch.where(torch.rand(box.shape, generator=generator) < MUTATIONS, other, box)
            start = copy * room + torch.randint(room - len(box) + 1, (), generator=generator).item()
            letters[row, start : start + len(box)] = box
    return letters, promoter.float()
