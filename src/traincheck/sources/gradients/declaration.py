"""What the sources about gradients serve."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

AUTOGRAD = SourceDeclaration(
    name="autograd",
    observes="`backward` and the gradients it leaves, `autograd.grad`, and updates without an optimizer",
    absence="No rule is judged: training steps begin and end with backwards and updates.",
    readings=("autocast.idle_region", "attention.heads", "module.shared_head", "loss.not_finite", "gradient.reduction"),
    required=True,
)

GRAPH = SourceDeclaration(
    name="graph",
    observes="the operations that each backward goes through, module by module",
    absence="Rules about the operations of a module are not judged.",
    readings=("graph.operations", "graph.numbers"),
)

CLIPPING = SourceDeclaration(
    name="clipping",
    observes="gradient clipping, and the norm of the gradients before and after",
    absence="Rules about clipping are not judged.",
    apis=("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_"),
)
