"""Good run 3: squeeze vectors through a bottleneck, with clipped gradients and a schedule."""

import torch
from torch import nn

torch.manual_seed(2)
data = torch.randn(400, 3) @ torch.randn(3, 12)

encoder = nn.Linear(12, 3)
decoder = nn.Linear(3, 12)
parameters = [*encoder.parameters(), *decoder.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=2e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60, eta_min=1e-3)

for _ in range(40):
    batch = data[torch.randint(len(data), (40,))]
    restored = decoder(torch.tanh(encoder(batch)))
    loss = (restored - batch).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    scheduler.step()
print(f"autoencoder: loss {loss.item():.4f}")
