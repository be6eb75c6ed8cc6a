# Vanilla GAN on 8x8 digits: one discriminator step, then one generator step.

import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits

SEED = 0
NZ = 32  # size of the noise vector
HIDDEN = 256
BATCH = 128
EPOCHS = 5
LR = 1e-3
BETAS = (0.5, 0.999)

np.random.seed(SEED)
torch.manual_seed(SEED)

# pixels to [-1, 1], the range of tanh
real_images = torch.from_numpy(load_digits().data.astype(np.float32)) / 8.0 - 1.0

netG = nn.Sequential(
    nn.Linear(NZ, HIDDEN),
    nn.BatchNorm1d(HIDDEN),
    nn.ReLU(True),
    nn.Linear(HIDDEN, HIDDEN),
    nn.BatchNorm1d(HIDDEN),
    nn.ReLU(True),
    nn.Linear(HIDDEN, 64),
    nn.Tanh(),
)

netD = nn.Sequential(
    nn.Linear(64, HIDDEN),
    nn.LeakyReLU(0.2),
    nn.Dropout(0.3),
    nn.Linear(HIDDEN, HIDDEN),
    nn.LeakyReLU(0.2),
    nn.Dropout(0.3),
    nn.Linear(HIDDEN, 1),
)

criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=LR, betas=BETAS)
optimizerG = torch.optim.Adam(netG.parameters(), lr=LR, betas=BETAS)

fixed_noise = torch.randn(64, NZ)
real_label = torch.full((BATCH, 1), 0.9)  # one-sided label smoothing
fake_label = torch.zeros(BATCH, 1)
true_label = torch.ones(BATCH, 1)

for epoch in range(EPOCHS):
    perm = np.random.permutation(len(real_images))
    for i in range(len(perm) // BATCH):
        real = real_images[perm[i * BATCH : (i + 1) * BATCH]]

        # (1) Update D: maximize log(D(x)) + log(1 - D(G(z)))
        netD.zero_grad()
        errD_real = criterion(netD(real), real_label)
        errD_real.backward()

        fake = netG(torch.randn(BATCH, NZ))
        errD_fake = criterion(netD(fake.detach()), fake_label)
        errD_fake.backward()
        errD = errD_real + errD_fake
        optimizerD.step()

        # (2) Update G: maximize log(D(G(z)))
        netG.zero_grad()
        output = netD(fake)
        errG = criterion(output, true_label)
        errG.backward()
        optimizerG.step()

        if i % 7 == 0:
            print(
                f"[{epoch}/{EPOCHS}][{i}/{len(perm) // BATCH}] "
                f"Loss_D: {errD.item():.4f} Loss_G: {errG.item():.4f} "
                f"D(G(z)): {torch.sigmoid(output).mean().item():.3f}"
            )

    netG.eval()
    with torch.no_grad():
        samples = netG(fixed_noise)
    netG.train()
    gap = (samples.mean(0) - real_images.mean(0)).abs().mean().item()
    print(f"epoch {epoch}: mean image of 64 samples is {gap:.3f} per pixel away from the mean digit")
