"""Pictures of a pendulum that swings with friction, and its angles."""

import torch

SIZE = 16


def swing(count, generator, friction=0.1, tick=0.08, ticks=25):
    """Two pictures, five ticks apart, [count, 2, SIZE, SIZE], and the angle in each, [count, 2]."""
    angle = 2.4 * (torch.rand(count, generator=generator) - 0.5)
    speed = torch.randn(count, generator=generator)
    angles = []
    for now in range(ticks):
        speed = speed + tick * (-4.0 * torch.sin(angle) - friction * speed)
        angle = angle + tick * speed
        if now in (ticks - 6, ticks - 1):
            angles.append(angle)
    return torch.stack([draw(angle) for angle in angles], dim=1), torch.stack(angles, dim=1)


def draw(angle):
    """The bob, at the end of a thread that hangs from the middle of the upper edge."""
    down, right = torch.meshgrid(torch.linspace(0, 1, SIZE), torch.linspace(-0.8, 0.8, SIZE), indexing="ij")
    bob_right, bob_down = 0.75 * torch.sin(angle), 0.75 * torch.cos(angle)
    distance = (right - bob_right[:, None, None]) ** 2 + (down - bob_down[:, None, None]) ** 2
    return torch.exp(-distance / 0.015)
