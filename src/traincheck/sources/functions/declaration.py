"""What the sources about functions serve: those of torch, of the program, and context managers around calls."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

_METHODS = ("forward", "step", "zero_grad", "train", "eval", "__init__", "__iter__", "__next__")
_OF_OTHER_SOURCES = ("torch.utils.data.", "torch.distributed.", "torch.optim.", "torch.autograd.", "torch.amp.")


def _is_torch_function(api: str) -> bool:
    return api.startswith("torch.") and api.rsplit(".", 1)[-1] not in _METHODS and not api.startswith(_OF_OTHER_SOURCES)


def _may_be_project_function(api: str) -> bool:
    return not api.startswith("torch.") and api.rsplit(".", 1)[-1] != "forward"


REGIONS = SourceDeclaration(
    name="regions",
    observes="context managers around calls, such as `no_sync` and `sdpa_kernel`",
    absence="No rule is judged: preconditions rest on these contexts.",
    required=True,
)

LIFECYCLE = SourceDeclaration(
    name="lifecycle",
    observes="schedulers, gradient scaler, autocast, `no_grad`, and seeds",
    absence="No rule is judged: preconditions rest on these contexts.",
    readings=("scheduler.never_stepped",),
    required=True,
)

FUNCTIONS = SourceDeclaration(
    name="functions",
    observes="torch functions and tensor methods",
    absence="Rules about torch functions, and about what is computed without gradients, are not judged.",
    serves_api=_is_torch_function,
    readings=("no_grad.*", "model.own_weights"),
    cost="operation",
)

PROJECT = SourceDeclaration(
    name="project",
    observes="functions of your own code, including clipping written by hand",
    absence="Rules about your own functions, and about clipping, are not judged.",
    apis=("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_"),
    serves_api=_may_be_project_function,
    readings=("values.form",),
)
