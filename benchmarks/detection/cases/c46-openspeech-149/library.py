"""Ratings of books by readers, made from hidden tastes; each book has a genre and each reader an age."""

import numpy as np
import torch
from torch.utils.data import Dataset

READERS, BOOKS, GENRES = 60, 80, 6


class Ratings(Dataset):
    """Triples of reader (number, age), book (number, genre) and rating. The tastes depend on `seed` alone."""

    def __init__(self, number, seed, part):
        tastes = np.random.default_rng(seed)
        reader_taste = tastes.normal(0, 1, (READERS, 3))
        book_taste = tastes.normal(0, 1, (BOOKS, 3))
        genre = tastes.integers(0, GENRES, BOOKS)
        genre_liked = tastes.normal(0, 0.5, GENRES)
        age = tastes.uniform(0, 1, READERS)

        rng = np.random.default_rng([seed, part])
        reader, book = rng.integers(0, READERS, number), rng.integers(0, BOOKS, number)
        rating = 3.2 + 0.5 * (reader_taste[reader] * book_taste[book]).sum(axis=1)
        rating += genre_liked[genre[book]] * (1.5 - age[reader]) + rng.normal(0, 0.3, number)
        self.reader, self.book = torch.as_tensor(reader), torch.as_tensor(book)
        self.genre = torch.as_tensor(genre[book])
        self.age = torch.as_tensor(age[reader], dtype=torch.float32)
        self.rating = torch.as_tensor(rating.clip(1, 5), dtype=torch.float32)

    def __len__(self):
        return len(self.rating)

    def __getitem__(self, i):
        return self.reader[i], self.age[i], self.book[i], self.genre[i], self.rating[i]
