"""Playlists of made-up listeners, who stay with a genre for a while and hop to one they like next."""

import torch
from torch.utils.data import Dataset

GENRES, SONGS_EACH, LENGTH = 8, 5, 17
SONGS = GENRES * SONGS_EACH


class Playlists(Dataset):
    """Songs heard, [LENGTH - 1], and the song after each, [LENGTH - 1]."""

    def __init__(self, listeners, seed):
        generator = torch.Generator().manual_seed(seed)
        genre = torch.randint(GENRES, (listeners,), generator=generator)
        place = torch.randint(SONGS_EACH, (listeners,), generator=generator)
        heard = []
        for _ in range(LENGTH):
            heard.append(genre * SONGS_EACH + place)
            hop = torch.rand(listeners, generator=generator) < 0.15
            genre = torch.where(hop, (3 * genre + 1) % GENRES, genre)
            strayed = torch.rand(listeners, generator=generator) < 0.1
            anywhere = torch.randint(SONGS_EACH, (listeners,), generator=generator)
            place = torch.where(strayed, anywhere, (place + 2) % SONGS_EACH)
        self.songs = torch.stack(heard, dim=1)

    def __len__(self):
        return len(self.songs)

    def __getitem__(self, index):
        return self.songs[index, :-1], self.songs[index, 1:]
