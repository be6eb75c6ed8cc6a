"""Made-up diners and recipes with hidden tastes, and which recipes the diners cooked again."""

import torch
from torch.utils.data import Dataset


class Meals(Dataset):
    """Triples of a diner, a recipe and 1.0 where the diner would cook it again."""

    def __init__(self, diners, recipes, meals, seed):
        generator = torch.Generator().manual_seed(seed)
        tastes = torch.randn(diners, 3, generator=generator)
        flavours = torch.randn(recipes, 3, generator=generator)
        self.diner = torch.randint(diners, (meals,), generator=generator)
        self.recipe = torch.randint(recipes, (meals,), generator=generator)
        match = (tastes[self.diner] * flavours[self.recipe]).sum(-1)
        self.again = (match + 0.3 * torch.randn(meals, generator=generator) > 0).float()

    def __len__(self):
        return len(self.again)

    def __getitem__(self, index):
        return self.diner[index], self.recipe[index], self.again[index]
