"""Who listened to which song: listeners and songs have tastes that nobody sees."""

import torch
from torch.utils.data import TensorDataset

LISTENERS, SONGS, TASTES = 60, 80, 4


def listening_log(count, seed):
    """Logs to train on and to test with, both of pairs (listener, song)."""
    generator = torch.Generator().manual_seed(seed)
    listener_taste = torch.randn(LISTENERS, TASTES, generator=generator)
    song_taste = torch.randn(SONGS, TASTES, generator=generator)
    chances = (1.5 * listener_taste @ song_taste.T).softmax(1)
    logs = []
    for size in (count, 400):
        listeners = torch.randint(LISTENERS, (size,), generator=generator)
        songs = torch.multinomial(chances[listeners], 1, generator=generator).squeeze(1)
        logs.append(TensorDataset(listeners, songs))
    return logs
