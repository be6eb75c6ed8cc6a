"""Two networks against each other, each with an optimizer of its own: the workload `gan`."""

import torch
from timing import Clock
from torch import nn
from torch.nn import functional as F

NOISE, WIDTH, PIXELS, BATCH = 32, 512, 64, 128

torch.manual_seed(0)
generator = nn.Sequential(
    nn.Linear(NOISE, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, PIXELS), nn.Tanh()
)
critic = nn.Sequential(
    nn.Linear(PIXELS, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, WIDTH), nn.LeakyReLU(0.2), nn.Linear(WIDTH, 1)
)
of_generator = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
clock = Clock()
for _ in range(clock.steps(100)):
    real = torch.randn(BATCH, PIXELS).tanh()
    made = generator(torch.randn(BATCH, NOISE))
    of_critic.zero_grad()
    judged_real, judged_made = critic(real), critic(made.detach())
    loss = F.binary_cross_entropy_with_logits(judged_real, torch.ones_like(judged_real))
    loss = loss + F.binary_cross_entropy_with_logits(judged_made, torch.zeros_like(judged_made))
    loss.backward()
    of_critic.step()
    of_generator.zero_grad()
    judged = critic(made)
    F.binary_cross_entropy_with_logits(judged, torch.ones_like(judged)).backward()
    of_generator.step()
    clock.tick()
clock.write_times()
