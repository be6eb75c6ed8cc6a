"""What the sources about modules serve."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

MODULES = SourceDeclaration(
    name="modules",
    observes="module calls, training mode, buffers, and `Module.zero_grad`",
    absence="No rule is judged: names of parameters and the stage of a step come from module calls.",
    required=True,
)

MODULE_STATE = SourceDeclaration(
    name="module_state",
    observes="training flags, size and class of models",
    absence="Rules about training flags, sizes and classes of models are not judged.",
    readings=(
        "module.training",
        "module.parameters",
        "module.class",
        "module.input",
        "module.attributes",
        "module.own_train",
        "module.pretrained",
        "module.unread_settings",
        "module.unused_layers",
        "module.unset_statistics",
        "module.random_weights",
        "parameter.same_start",
        "model.stale_copy",
        "model.average",
        "buffer.made",
    ),
)

BUFFERS = SourceDeclaration(
    name="buffers",
    observes="the contents of buffers in models that several ranks use",
    absence="Rules that compare buffers between ranks are not judged.",
    readings=("buffer.used_data",),
)

COPIES = SourceDeclaration(
    name="copies",
    observes="whether copies of a trained model have its weights: a reference, or the model of a rollout worker",
    absence="Rules about the weights of copies are not judged.",
    readings=("model.weights",),
)

EVALUATION = SourceDeclaration(
    name="evaluation",
    observes="what an evaluation changes of parameters, gradients, buffers, optimizers and random states",
    absence="Rules about what an evaluation changes are not judged.",
    readings=("evaluation.changed",),
)
