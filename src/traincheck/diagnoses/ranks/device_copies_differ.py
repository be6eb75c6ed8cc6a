"""The diagnosis that copies of an array on several devices differ."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import COPIES_AGREE

DIAGNOSIS = Diagnosis(
    slug="device-copies-differ",
    title="Devices hold different copies of one array",
    problem="JAX treats this array as replicated, but the devices of this process hold different values. Each device "
    "trains a model of its own, and a checkpoint keeps only one of them.",
    advice=(
        "Average the gradients over the devices before the update: `jax.lax.pmean(grads, axis_name)`.",
        "Do not switch off the check of `jax.shard_map` (`check_vma=False`): it finds outputs that are not replicated.",
    ),
    explains=(Match(verb=COPIES_AGREE),),
    priority=2,
    priority_reason="Each device goes its own way from here on, which explains other findings.",
    example="""\
grads = jax.grad(loss)(params, batch)  # without jax.lax.pmean(grads, "data")
updates, opt_state = optimizer.update(grads, opt_state, params)
""",
)
