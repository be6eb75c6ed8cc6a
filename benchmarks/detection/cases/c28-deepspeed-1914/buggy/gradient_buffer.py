"""A buffer that sums the gradients of micro-batches in float64, out of the way of the next backward."""

import torch


class GradientBuffer:
    """
    for micro_batch in micro_batches:
        loss(micro_batch).backward()
        buffer.collect()
    buffer.release()
    optimizer.step()
    """

    def __init__(self, parameters):
        self.parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.sums = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in self.parameters]
        self.collected = 0

    @torch.no_grad()
    def collect(self):
        """Add the gradients of a backward and take them from the parameters."""
        for parameter, total in zip(self.parameters, self.sums, strict=True):
            if parameter.grad is not None:
                total.add_(parameter.grad)
                parameter.grad = None
        self.collected += 1

    @torch.no_grad()
    def release(self):
        """Give the parameters the mean over all that was collected, and start anew; the norm of it."""
        squares = 0.0
        for parameter, total in zip(self.parameters, self.sums, strict=True):
            mean = total / self.collected
            squares += mean.square().sum()
            parameter.data.grad = mean.to(parameter.dtype)
            total.zero_()
        self.collected = 0
        return squares**0.5
