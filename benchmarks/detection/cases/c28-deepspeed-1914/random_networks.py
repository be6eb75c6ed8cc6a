"""Random networks of up to some nodes as dense adjacency matrices, rated by their share of closed triangles."""

import torch

NODES = 14


def networks(count, generator):
    """Adjacency (count, nodes, nodes), a mask of the nodes that exist, and the rating, standardised."""
    sizes = torch.randint(8, NODES + 1, (count,), generator=generator)
    exists = torch.arange(NODES) < sizes[:, None]
    place = torch.rand(count, NODES, 2, generator=generator)
    apart = torch.cdist(place, place)
    chance = torch.rand(count, 1, 1, generator=generator)
    near = (apart < 0.2 + 0.3 * chance) & (torch.rand(apart.shape, generator=generator) < 0.9)
    links = torch.triu(near & exists[:, :, None] & exists[:, None, :], diagonal=1).float()
    links = links + links.mT
    triangles = (links @ links * links).sum((1, 2)) / sizes
    return links, exists.float()[..., None], (triangles - 10) / 10
