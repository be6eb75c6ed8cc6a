"""The diagnosis that random keys repeat in a way that no good run showed."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import KEY_IS_ONLY

DIAGNOSIS = Diagnosis(
    slug="random-keys-repeat",
    title="A random key is used again",
    problem="This step got a random key (`jax.random`) that an earlier step used, which never happened in good runs. "
    "Both steps draw the same numbers: the same dropout mask, noise or augmentation.",
    advice=(
        "Split the key before each step and keep the first part: `key, step_key = jax.random.split(key)`.",
        "Or fold the number of the step into one key: `jax.random.fold_in(key, step)`.",
    ),
    explains=(Match(verb=KEY_IS_ONLY, setting=True),),
    priority=81,
    priority_reason="It may be intended, and a more specific finding says what is wrong with the data.",
    example="""\
for batch in batches:
    state, loss = train_step(state, batch, key)  # the same key in each step
""",
)
