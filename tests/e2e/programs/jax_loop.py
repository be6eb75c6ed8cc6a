"""A training loop in JAX and Optax.

The argument names an error. `seeds` records a run for each seed, and `errors` checks a run for each error.
"""

from __future__ import annotations

import hashlib
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import traincheck

STEPS = 16
ROWS = 8


def initial(seed: int) -> Any:
    first, second = jax.random.split(jax.random.key(seed))
    hidden = {"kernel": jax.random.normal(first, (16, 32)) * 0.2, "bias": jnp.zeros(32)}
    return {"hidden": hidden, "out": {"kernel": jax.random.normal(second, (32, 4)) * 0.2, "bias": jnp.zeros(4)}}


def loss_of(params: Any, x: Any, y: Any, key: Any) -> Any:
    x = jax.nn.relu(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    x = x * jax.random.bernoulli(key, 0.9, x.shape) / 0.9
    logits = x @ params["out"]["kernel"] + params["out"]["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def train(seed: int, error: str = "") -> str:
    labels = {"hidden": "frozen" if error == "frozen" else "trained", "out": "trained"}
    rate = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 3, 1000)
    optimizer = optax.multi_transform({"trained": optax.adamw(rate), "frozen": optax.set_to_zero()}, labels)

    def step(params: Any, state: Any, x: Any, y: Any, key: Any, *, axis: str = "") -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y, key)
        if axis and error != "diverging":
            grads = jax.lax.pmean(grads, axis)
        updates, new_state = optimizer.update(grads, state, params)
        new_params = params if error == "dropped" else optax.apply_updates(params, updates)
        return new_params, state if error == "uncounted" else new_state, loss

    params = initial(seed)
    if jax.device_count() > 1:
        mesh = Mesh(np.array(jax.devices()), ("data",))
        specs = (P(), P(), P("data"), P("data"), P())
        on_all = partial(step, axis="data")
        sharded = jax.shard_map(on_all, mesh=mesh, in_specs=specs, out_specs=(P(), P(), P()), check_vma=False)
        train_step = jax.jit(sharded)
        params = jax.device_put(params, NamedSharding(mesh, P()))
    else:
        train_step = jax.jit(step, donate_argnums=(0, 1))
    state = optimizer.init(params)
    random = np.random.default_rng(seed)
    key = jax.random.key(seed)
    for _ in range(STEPS):
        x = random.normal(size=(ROWS, 16)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int32) + 2 * (x[:, 1] > 0).astype(np.int32)
        key, step_key = (key, key) if error == "same_key" else jax.random.split(key)
        params, state, _ = train_step(params, state, x, y, step_key)
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves((params, state)):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


if sys.argv[1] == "seeds":
    for seed in sys.argv[2:]:
        with traincheck.observe(f"good-{seed}"):
            train(int(seed))
elif sys.argv[1] == "errors":
    for name in sys.argv[2:]:
        with traincheck.checked(f"run-{name}", "good.jsonl", packs="shipped", record_after_finding=0) as run:
            train(7, name)
        assert run.report is not None
        print(name, *(f"{finding.diagnosis}:{finding.step}" for finding in run.report.findings))
else:
    print(train(7, sys.argv[1]))
