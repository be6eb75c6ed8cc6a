"""Updates in programs of JAX: which calls they are, what they change, and that the program computes the same."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from observed_process import Seen, observing
from traincheck.sources.jax.digests import Digester
from traincheck.sources.jax.jitted_functions import MAX_IDLE_CALLS, ObservedFunction
from traincheck.vocab.facts import value_of

optax = pytest.importorskip("optax")

UPDATE = "jax.update"
STEPS = 3
Tree = Any


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(step)
    return random.normal(size=(8, 4)).astype(np.float32), random.normal(size=(8, 2)).astype(np.float32)


def initial(seed: int = 0) -> Tree:
    keys = jax.random.split(jax.random.key(seed))
    hidden = {"kernel": jax.random.normal(keys[0], (4, 8)), "bias": jnp.zeros(8)}
    return {"hidden": hidden, "out": {"kernel": jax.random.normal(keys[1], (8, 2))}}


NAMES = ["params.hidden.bias", "params.hidden.kernel", "params.out.kernel"]


def loss_of(params: Tree, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ params["hidden"]["kernel"] + params["hidden"]["bias"])
    return ((hidden @ params["out"]["kernel"] - y) ** 2).mean()


def jitted_step(optimizer: Any, **options: Any) -> Callable[..., Any]:
    @partial(jax.jit, **options)
    def train_step(params: Tree, state: Tree, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    function: Callable[..., Any] = train_step
    return function


def trained(optimizer: Any, steps: int = STEPS, **options: Any) -> Tree:
    step = jitted_step(optimizer, **options)
    params = initial()
    state = optimizer.init(params)
    for number in range(steps):
        params, state, _ = step(params, state, *batch(number))
    return params, state


def changed(seen: Seen) -> list[dict[str, bool]]:
    """For each update: whether each parameter changed in the update before."""
    return [
        {change.variable: change.changed for change in seen.changes if change.call == call.seq}
        for call in seen.named(UPDATE)
    ]


def read(seen: Seen, attribute: str) -> list[object]:
    return [reading.value for reading in seen.readings if reading.attribute == attribute]


def observed(program: Callable[[], object]) -> Seen:
    with observing() as seen:
        program()
    assert seen.faults == []
    return seen


# -- steps and parameters --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("donated", [(), (0, 1)], ids=["kept", "donated"])
def test_each_call_of_the_step_is_an_update_of_all_parameters(donated: tuple[int, ...]) -> None:
    seen = observed(lambda: trained(optax.adam(1e-2), donate_argnums=donated))
    assert seen.stages == [("setup", 0), ("train", 1), ("train", 2), ("train", 3), ("end", 3)]
    assert changed(seen) == [{}, dict.fromkeys(NAMES, True), dict.fromkeys(NAMES, True)]
    assert read(seen, "step") == read(seen, "lowest_step") == [0, 1, 2]
    assert {call.receiver for call in seen.named(UPDATE)} == {"train_step"}
    assert all(":train_step" not in call.site and "test_jax_updates" in call.site for call in seen.named(UPDATE))


def test_training_computes_the_same_bits() -> None:
    alone = jax.tree.map(np.asarray, trained(optax.adam(1e-2), 4))
    with observing():
        watched = jax.tree.map(np.asarray, trained(optax.adam(1e-2), 4))
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, alone, watched)))


def test_an_update_by_hand_shows_once_its_result_is_passed_back() -> None:
    def program() -> None:
        @jax.jit
        def step(params: Tree, x: Any, y: Any) -> Tree:
            return jax.tree.map(lambda value, grad: value - 0.1 * grad, params, jax.grad(loss_of)(params, x, y))

        params = initial()
        for number in range(STEPS):
            params = step(params, *batch(number))

    seen = observed(program)
    assert [step for _, step in seen.stages] == [0, 1, 2, 3, 3]
    assert changed(seen) == [{}, dict.fromkeys(NAMES, True)]


def test_gradients_and_evaluations_are_no_updates() -> None:
    def program() -> None:
        gradient, evaluate = jax.jit(jax.value_and_grad(loss_of)), jax.jit(loss_of)
        params = initial()
        for number in range(STEPS):
            gradient(params, *batch(number))
            evaluate(params, *batch(number))

    assert observed(program).stages == [("setup", 0)]


def test_a_dropped_result_changes_nothing() -> None:
    def program() -> None:
        optimizer = optax.adam(1e-2)
        step, params = jitted_step(optimizer), initial()
        state = optimizer.init(params)
        for number in range(12):
            _, state, _ = step(params, state, *batch(number))

    seen = observed(program)
    assert changed(seen)[1:] == [dict.fromkeys(NAMES, False)] * 11
    lost = [value_of(call.context, "lost") for call in seen.named(UPDATE)]
    assert lost == [None, *[True] * 9, False, False]  # a schedule may begin at a rate of zero


def test_two_models_of_one_function_have_states_of_their_own() -> None:
    def program() -> None:
        optimizer = optax.adam(1e-2)
        step = jitted_step(optimizer)
        models = [(params, optimizer.init(params)) for params in (initial(0), initial(1))]
        for number in range(STEPS):
            models = [step(*model, *batch(number))[:2] for model in models]

    seen = observed(program)
    assert [call.receiver for call in seen.named(UPDATE)] == ["train_step", "train_step#2"] * STEPS
    assert read(seen, "step") == [0, 0, 1, 1, 2, 2]
    assert [step for _, step in seen.stages] == [0, 1, 2, 3, 3]


# -- optimizers --------------------------------------------------------------------------------------------------------


def test_accumulating_calls_change_nothing_and_count_nothing() -> None:
    seen = observed(lambda: trained(optax.MultiSteps(optax.adam(1e-2), 2), 5))
    assert [bool(changes) for changes in changed(seen)] == [False, False, True, False, True]
    assert read(seen, "step") == [0, 1, 2]


def test_updates_that_optax_skips_are_not_judged() -> None:
    def program() -> None:
        optimizer = optax.apply_if_finite(optax.adam(1e-2), 5)
        step, params = jitted_step(optimizer), initial()
        state = optimizer.init(params)
        for number in range(4):
            x, y = batch(number)
            params, state, _ = step(params, state, x * (np.nan if number == 1 else 1), y)

    seen = observed(program)
    assert [bool(changes) for changes in changed(seen)] == [False, True, False, True]


def test_a_call_with_several_updates_has_no_step_count() -> None:
    def program() -> None:
        optimizer = optax.adam(1e-2)

        @jax.jit
        def epoch(params: Tree, state: Tree, xs: Any, ys: Any) -> Any:
            def body(carried: Tree, data: Any) -> Any:
                updates, state = optimizer.update(jax.grad(loss_of)(carried[0], *data), carried[1], carried[0])
                return (optax.apply_updates(carried[0], updates), state), None

            return jax.lax.scan(body, (params, state), (xs, ys))[0]

        params = initial()
        state = optimizer.init(params)
        for number in range(STEPS):
            x, y = batch(number)
            params, state = epoch(params, state, np.stack([x, x]), np.stack([y, y]))

    assert read(observed(program), "step") == [0]


def test_injected_settings_are_read() -> None:
    schedule = optax.linear_schedule(0.0, 1e-2, 2)
    seen = observed(lambda: trained(optax.inject_hyperparams(optax.adamw)(learning_rate=schedule), 4))
    assert read(seen, "lr") == pytest.approx([0.0, 0.0, 5e-3, 1e-2])
    assert [value_of(call.context, "lr") for call in seen.named(UPDATE)] == ["zero", "zero", "positive", "positive"]


def test_the_optimizer_state_of_each_parameter_is_described() -> None:
    labels = {"hidden": "train", "out": "fixed"}
    partition = optax.multi_transform({"train": optax.sgd(1e-2, momentum=0.9), "fixed": optax.set_to_zero()}, labels)
    seen = observed(lambda: trained(partition))
    (treatment,) = read(seen, "parameters")
    assert str(treatment).splitlines() == [
        "params.hidden.bias is trainable, with inner_states.train.inner_state.0.trace",
        "params.hidden.kernel is trainable, with inner_states.train.inner_state.0.trace",
        "params.out.kernel is trainable, without optimizer state",
    ]
    assert changed(seen)[1]["params.out.kernel"] is False


def test_gradients_that_are_passed_in_are_no_batch() -> None:
    def program() -> None:
        optimizer = optax.adam(1e-2)
        gradient = jax.jit(jax.grad(loss_of))

        @jax.jit
        def apply(params: Tree, state: Tree, grads: Tree) -> Any:
            updates, state = optimizer.update(grads, state, params)
            return optax.apply_updates(params, updates), state

        params = initial()
        state = optimizer.init(params)
        for number in range(STEPS):
            grads = gradient(params, *batch(number))
            grads["out"]["kernel"] = grads["out"]["kernel"] * 0
            params, state = apply(params, state, grads)

    seen = observed(program)
    assert read(seen, "form") == []
    gradients = {change.variable: value_of(change.context, "grad") for change in seen.changes}
    assert gradients == dict(zip(NAMES, ["some", "some", "zero"], strict=True))


def test_objects_of_flax_are_followed() -> None:
    nnx = pytest.importorskip("flax.nnx")

    def program() -> None:
        model = nnx.Sequential(nnx.Linear(4, 8, rngs=nnx.Rngs(0)), nnx.BatchNorm(8, rngs=nnx.Rngs(0)))
        optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

        @nnx.jit
        def train_step(model: Any, optimizer: Any, x: Any) -> Any:
            loss, grads = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
            optimizer.update(model, grads)
            return loss

        for number in range(STEPS):
            train_step(model, optimizer, batch(number)[0])

    seen = observed(program)
    names = [f"model.layers.{name}" for name in ("0.bias", "0.kernel", "1.bias", "1.scale")]
    assert [sorted(changes) for changes in changed(seen)] == [[], names, names]  # without the running means
    assert read(seen, "step") == [0, 1, 2]
    assert len(set(read(seen, "content"))) == STEPS


# -- keys and batches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make_key", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
def test_keys_and_batches_are_compared_by_content(make_key: Callable[[int], Any]) -> None:
    def program() -> None:
        optimizer = optax.sgd(1e-2)

        @jax.jit
        def step(params: Tree, state: Tree, x: Any, y: Any, key: Any) -> Any:
            x = x * jax.random.bernoulli(key, 0.9, x.shape)
            updates, state = optimizer.update(jax.grad(loss_of)(params, x, y), state, params)
            return optax.apply_updates(params, updates), state

        params = initial()
        state = optimizer.init(params)
        for number in range(4):
            params, state = step(params, state, *batch(number // 2), make_key(number % 2))

    seen = observed(program)
    keys, contents = read(seen, "key"), read(seen, "content")
    assert keys[0] == keys[2] != keys[1] == keys[3]
    assert contents[0] == contents[1] != contents[2] == contents[3]
    assert {reading.variable for reading in seen.readings if reading.kind == "random"} == {"step(key)"}


# -- the program -------------------------------------------------------------------------------------------------------


def test_an_observed_function_is_used_like_a_function_of_jax() -> None:
    class Model:
        @partial(jax.jit, static_argnums=0)
        def twice(self, x: Any) -> Any:
            return 2 * x

    with observing():

        class Observed:
            @partial(jax.jit, static_argnums=0)
            def twice(self, x: Any) -> Any:
                return 2 * x

        double = jax.jit(lambda x: 2 * x)
    plain = jax.jit(lambda x: 2 * x)
    assert isinstance(double, ObservedFunction)
    assert not isinstance(plain, ObservedFunction)
    assert float(Observed().twice(2.0)) == float(Model().twice(2.0)) == 4.0
    assert float(jax.jit(double)(3.0)) == float(jax.vmap(double)(jnp.ones(1))[0] * 3) == float(double.__wrapped__(3.0))
    assert float(jax.grad(double)(3.0)) == 2.0
    assert double.lower(1.0).as_text() == plain.lower(1.0).as_text()
    assert (double.__name__, repr(double)) == (plain.__name__, repr(double._function))
    assert double.eval_shape(1.0).shape == ()


def test_the_functions_of_jax_are_put_back() -> None:
    before = {name: getattr(jax, name) for name in ("jit", "pmap", "grad", "value_and_grad")}
    with observing():
        assert all(getattr(jax, name) is not function for name, function in before.items())
    assert all(getattr(jax, name) is function for name, function in before.items())


def test_an_error_of_the_program_is_its_own() -> None:
    def program() -> None:
        optimizer = optax.adam(1e-2)
        step, params = jitted_step(optimizer), initial()
        state = optimizer.init(params)
        for number in range(STEPS):
            if number == 1:
                with pytest.raises(TypeError, match="contracting dimensions"):
                    step(params, state, np.ones((8, 3), np.float32), batch(0)[1])
            params, state, _ = step(params, state, *batch(number))

    seen = observed(program)
    assert changed(seen) == [{}, dict.fromkeys(NAMES, True), dict.fromkeys(NAMES, True)]


def test_values_that_are_not_finite_pass_under_debug_nans() -> None:
    def program() -> None:
        optimizer = optax.sgd(1e-2, momentum=0.9)
        step, params = jitted_step(optimizer), initial()
        state = optimizer.init(params)
        params["hidden"]["bias"] = jnp.full(8, -jnp.inf)  # tanh makes it finite
        for number in range(STEPS):
            params, state, _ = step(params, state, *batch(number))

    jax.config.update("jax_debug_nans", True)
    try:
        seen = observed(program)
    finally:
        jax.config.update("jax_debug_nans", False)
    assert len(changed(seen)) == STEPS


def test_a_fault_of_ours_leaves_the_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = trained(optax.adam(1e-2))

    def broken(self: Digester, arrays: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(Digester, "start", broken)
    with observing() as seen:
        watched = trained(optax.adam(1e-2))
    assert jax.tree.all(jax.tree.map(np.array_equal, alone, watched))
    assert [(source, str(error)) for source, error in seen.faults] == [("jax", "broken")]


def test_watched_steps_are_judged_between_steps_that_are_not_watched() -> None:
    with observing(watches=lambda step: step in (2, 5)) as seen:
        trained(optax.adam(1e-2), 6)
    assert [window.step for window in seen.windows if window.stage == "train"] == [2, 5]
    assert changed(seen) == [dict.fromkeys(NAMES, True)] * 2


def test_arrays_of_the_program_are_not_kept_alive() -> None:
    with observing():
        optimizer = optax.adam(1e-2)
        step, params = jitted_step(optimizer), initial()
        state = optimizer.init(params)
        first = [weakref.ref(leaf) for leaf in jax.tree.leaves((params, state))]
        for number in range(2):
            params, state, _ = step(params, state, *batch(number))
        gc.collect()
        assert [reference() for reference in first] == [None] * len(first)


def test_a_function_that_makes_no_updates_is_soon_left_alone() -> None:
    with observing():

        @jax.jit(inline=True)
        def double(x: Any) -> Any:
            return 2 * x

        assert isinstance(double, ObservedFunction)
        assert [float(double(float(number))) for number in range(MAX_IDLE_CALLS + 3)][-1] == 2.0 * (MAX_IDLE_CALLS + 2)
        assert double._call.args[0].idle_calls == MAX_IDLE_CALLS
