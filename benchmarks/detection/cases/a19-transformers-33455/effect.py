"""Batches that the training consumed, and batches in the epochs that it was asked for."""

from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook


def watch(record):
    import fitter

    fit = fitter.Fitter.fit
    models, updates, consumed = [], [0], [0]

    def stepped(optimizer, args, kwargs):
        updates[0] += 1

    def forwarded(module, inputs, output):
        consumed[0] += module.training and any(module is model for model in models)

    def fitted(self):
        models.append(self.model)
        trained = fit(self)
        record(step=updates[0], consumed=consumed[0], asked=len(self.loader) * self.args.num_epochs)
        return trained

    fitter.Fitter.fit = fitted
    register_optimizer_step_post_hook(stepped)
    register_module_forward_hook(forwarded)


def first_bad_step(ranks):
    return next((seen["step"] for seen in ranks[0] if seen["consumed"] < seen["asked"]), None)
