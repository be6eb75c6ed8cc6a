"""Trajectories of the Lorenz system, in its own units."""

import torch


def flow(state, sigma=10.0, rho=28.0, beta=8 / 3):
    x, y, z = state.unbind(-1)
    return torch.stack([sigma * (y - x), x * (rho - z) - y, x * y - beta * z], dim=-1)


def trajectories(count, length, generator, dt=0.02, settle=150):
    """`count` trajectories (count, length, 3) on the attractor, from random starts, by the midpoint rule."""
    state = torch.randn(count, 3, generator=generator) + torch.tensor([0.0, 0.0, 25.0])
    path = []
    for _ in range(settle + length):
        middle = state + 0.5 * dt * flow(state)
        state = state + dt * flow(middle)
        path.append(state)
    return torch.stack(path[settle:], dim=1)
