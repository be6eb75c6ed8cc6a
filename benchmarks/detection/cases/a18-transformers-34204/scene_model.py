"""Answers from a picture and a question: the question decides how the picture's features are read."""

import torch
from torch import nn


class PictureTower(nn.Module):
    """Features (batch, dim) of the images of each sample, their mean where there are several."""

    def __init__(self, dim):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, kernel_size=4, stride=2)
        self.conv = nn.Conv2d(dim, dim, kernel_size=3, padding=1)
        self.out = nn.Linear(dim * 25, dim)

    def forward(self, pixel_values):
        batch, count = pixel_values.shape[:2]
        x = torch.relu(self.patches(pixel_values.flatten(0, 1)))
        x = torch.relu(self.conv(x))
        return self.out(x.flatten(1)).unflatten(0, (batch, count)).mean(1)


class QuestionTower(nn.Module):
    def __init__(self, vocabulary, dim):
        super().__init__()
        self.words = nn.EmbeddingBag(vocabulary, dim, mode="mean", padding_idx=0)
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.Tanh())

    def forward(self, input_ids):
        return self.out(self.words(input_ids))


class AnswerModel(nn.Module):
    def __init__(self, vocabulary, answers, dim=32):
        super().__init__()
        self.picture = PictureTower(dim)
        self.question = QuestionTower(vocabulary, dim)
        self.gate = nn.Linear(dim, dim)
        self.classify = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, answers))

    def forward(self, pixel_values, input_ids):
        seen, asked = self.picture(pixel_values), self.question(input_ids)
        return self.classify(torch.cat([seen * self.gate(asked), asked], dim=-1))
