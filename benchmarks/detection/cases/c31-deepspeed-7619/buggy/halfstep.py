"""One object for a model and its optimizer that trains them in a lower precision.

engine = Engine(model, optimizer, precision=torch.float16)
loss = criterion(engine(inputs), targets)
engine.backward(loss)
engine.step()
"""

import torch


class Engine:
    """Runs the model under autocast; weights and optimizer state stay float32.

    With `accumulate` the gradients of that many backwards are averaged before an update is made.
    """

    def __init__(self, model, optimizer, precision=torch.bfloat16, accumulate=1):
        self.model = model
        self.optimizer = optimizer
        self.device = next(model.parameters()).device.type
        self.precision = precision
        self.accumulate = accumulate
        self.backwards = 0

    def __call__(self, *inputs, **options):
        with torch.autocast(self.device, dtype=self.precision):
            return self.model(*inputs, **options)

    def backward(self, loss):
        (loss / self.accumulate).backward()
        self.backwards += 1

    def step(self):
        """Update the weights, unless more gradients are to come before."""
        if self.backwards % self.accumulate:
            return
        self.optimizer.step()
        self.optimizer.zero_grad()
