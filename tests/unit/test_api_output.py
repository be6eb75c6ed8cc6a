"""APIOutput on hand-written windows: good, bad and unjudged cases."""

from __future__ import annotations

import functools

import pytest

from traincheck.relations.api_output import call_results as results
from traincheck.relations.api_output.call_results import promoted
from traincheck.relations.api_output.relation import APIOutput
from traincheck.testing.conformance import check_relation
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.events import TensorSummary
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import (
    LEAVES_ARGUMENT,
    RETURNS_DTYPE,
    RETURNS_LENGTH,
    RETURNS_MORE,
    RETURNS_SIZE,
    RETURNS_WIDTH,
)

LINEAR, FORWARD = "torch.nn.functional.linear", "torch.nn.Module.forward"
OFF = '{"autocast":"off","grad_mode":"on"}'
ON = '{"autocast":"bfloat16","grad_mode":"on"}'


def call(api: str, *tensors: str, context: str = OFF, args: str = "{}", result: str = "{}", indent: int = 1) -> str:
    pad = "  " * indent
    lines = [f"{pad}{api} context={context} args={args} result={result}\n"]
    return "".join((*lines, *(f"{pad}  tensor {tensor}\n" for tensor in tensors)))


def of(body: str, api: str) -> list[Occasion]:
    (window,) = from_text(f"window train step=1\n{body}")
    return [occasion for occasion in APIOutput().occasions(window) if occasion.subject == Subject(api, "result")]


def verdicts(occasions: list[Occasion], prop: Property) -> list[bool]:
    """Return for each occasion that judged `prop` whether it held."""
    return [prop in occasion.held for occasion in occasions if prop in occasion.held or prop in (occasion.failed or ())]


def judged(occasions: list[Occasion]) -> set[Property]:
    return {prop for occasion in occasions for prop in (*occasion.held, *(occasion.failed or ()))}


# -- data types --------------------------------------------------------------------------------------------------------

AUTOCAST = Property(RETURNS_DTYPE, results.OF_AUTOCAST)
INPUT = Property(RETURNS_DTYPE, results.OF_INPUT)


def linear(into: str, out: str, context: str = ON, function: str = f"function {LINEAR}") -> str:
    return call(
        function, f"input {into}[4,8]", "weight float32[2,8] requires_grad", f"result {out}[4,2]", context=context
    )


def test_autocast_results_have_the_autocast_dtype() -> None:
    assert verdicts(of(linear("float32", "bfloat16"), LINEAR), AUTOCAST) == [True]
    assert verdicts(of(linear("float32", "float32"), LINEAR), AUTOCAST) == [False]


def test_which_type_autocast_has_is_no_reason() -> None:
    (occasion,) = of(linear("float32", "bfloat16"), LINEAR)
    assert value_of(occasion.context, "autocast") is None and value_of(occasion.context, "grad_mode") == "on"


@pytest.mark.parametrize(
    "body",
    [
        linear("float32", "float32", context=OFF),
        linear("float64", "float64"),
        linear("bfloat16", "float32"),
        call("function torch.relu", "input bfloat16[4]", "result bfloat16[4]", context=ON),
        call("function torch.argmax", "input float32[4]", "result int64[]", context=ON),
        call(
            "function torch.Tensor.to", "self float32[4]", "result float16[4]", context=ON, args='{"dtype":"float16"}'
        ),
    ],
    ids=["no autocast", "double", "partly cast", "nothing to cast", "indices", "asked for"],
)
def test_autocast_is_not_to_be_judged(body: str) -> None:
    assert AUTOCAST not in {prop for occasion in of_all(body) for prop in (*occasion.held, *(occasion.failed or ()))}


def of_all(body: str) -> list[Occasion]:
    (window,) = from_text(f"window train step=1\n{body}")
    return list(APIOutput().occasions(window))


def test_a_container_returns_the_result_of_its_last_layer() -> None:
    outer = call(
        f"module torch.nn.Sequential.forward < {FORWARD}", "input float32[4,8]", "result float32[4,2]", context=ON
    )
    mine = outer.replace("torch.nn.Sequential", "train.Net")
    inner = call(
        f"module torch.nn.Linear.forward < {FORWARD}",
        "input float32[4,8]",
        "result bfloat16[4,2]",
        context=ON,
        indent=2,
    )
    assert verdicts(of(outer + inner, "torch.nn.Linear.forward"), AUTOCAST) == [True]
    assert verdicts(of(outer + inner, "torch.nn.Sequential.forward"), AUTOCAST) == []
    assert verdicts(of(mine + inner, "train.Net.forward"), AUTOCAST) == [False]
    assert verdicts(of(outer + inner, FORWARD), AUTOCAST) == []


def function(*tensors: str, **other: str) -> str:
    return call("project train.f", *tensors, **other)  # type: ignore[arg-type]


def test_the_type_of_the_result_is_that_of_the_inputs() -> None:
    good = of(function("x bfloat16[4]", "y float32[4]", "result float32[4]"), "train.f")
    bad = of(function("x bfloat16[4]", "result float32[4]"), "train.f")
    assert (verdicts(good, INPUT), verdicts(bad, INPUT)) == ([True], [False])
    dtypes = [value_of(occasion.context, "inputs_dtype") for occasion in (*good, *bad) if INPUT in judged([occasion])]
    assert dtypes == ["float32", "bfloat16"]


def test_an_argument_may_ask_for_a_type() -> None:
    requested = Property(RETURNS_DTYPE, "of argument kind")
    tensors = ("x float32[4]", "result float16[4]")
    assert verdicts(of(function(*tensors, args='{"kind":"float16"}'), "train.f"), requested) == [True]
    occasions = of(function(*tensors, args='{"kind":"bfloat16"}'), "train.f")
    assert verdicts(occasions, requested) == [False] and verdicts(occasions, INPUT) == []


def test_indices_have_a_fixed_type() -> None:
    whole = Property(RETURNS_DTYPE, "int64")
    assert verdicts(of(function("x float32[4,2]", "result int64[4]"), "train.f"), whole) == [True]
    assert verdicts(of(function("x float32[4,2]", "result bool[4]"), "train.f"), whole) == [False]
    assert verdicts(of(function("x float32[4,2]", "y int64[4]", "result int64[4]"), "train.f"), whole) == []
    assert verdicts(of(function("x int64[4,2]", "result int64[4]"), "train.f"), whole) == []


def test_floats_from_nowhere_are_not_judged() -> None:
    assert of(function("result float32[4]"), "train.f") == []


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["float32[2]", "float64[2]"], "float64"),
        (["float16[2]", "bfloat16[2]"], "float32"),
        (["bfloat16[2]", "float64[]"], "bfloat16"),
        (["float32[]"], "float32"),
        (["int64[2]"], None),
        (["float32[2]", "complex64[2]"], None),
        (["float8_e4m3fn[2]"], None),
    ],
)
def test_promotion_is_that_of_torch(kinds: list[str], expected: str | None) -> None:
    tensors = []
    for kind in kinds:
        dtype, _, sizes = kind.rstrip("]").partition("[")
        tensors.append(TensorSummary("x", dtype, tuple(map(int, filter(None, sizes.split(","))))))
    assert promoted(tuple(tensors)) == expected


def test_types_of_torch_functions_are_settled_by_torch() -> None:
    body = call("function torch.add", "input float32[4]", "result float32[4]")
    module = call(f"module torch.nn.ReLU.forward < {FORWARD}", "input float32[4]", "result float64[4]")
    assert of_all(body) == [] and of_all(module) == []


# -- gradients and values ----------------------------------------------------------------------------------------------


def layer(*tensors: str, module: str = "train.Net", context: str = OFF, **other: str) -> str:
    return call(f"module {module}.forward < {FORWARD}", *tensors, context=context, **other)  # type: ignore[arg-type]


def test_gradients_flow_through_modules() -> None:
    good = layer("x float32[4,8] requires_grad", "result float32[4,2] requires_grad")
    bad = layer("x float32[4,8] requires_grad", "result float32[4,2]")
    for api in ("train.Net.forward", FORWARD):
        assert verdicts(of(good, api), results.REQUIRES_GRAD) == [True]
        assert verdicts(of(bad, api), results.REQUIRES_GRAD) == [False]


@pytest.mark.parametrize(
    "body",
    [
        layer("x float32[4,8]", "result float32[4,2]"),
        layer("x float32[4] requires_grad", "result int64[4]"),
        layer("x float32[4] requires_grad", "result float32[4]", context='{"autocast":"off","grad_mode":"off"}'),
        call("function torch.Tensor.detach", "self float32[4] requires_grad", "result float32[4]"),
        layer("x float32[4] requires_grad", "result float32[4]", result='{"parameters":false}'),
    ],
    ids=["no gradient to flow", "indices", "no_grad", "function of torch", "positions, which only look at the size"],
)
def test_the_flow_of_gradients_is_not_to_be_judged(body: str) -> None:
    assert results.REQUIRES_GRAD not in judged(of_all(body))


def values(finite: str, out: str, **other: str) -> str:
    facts = (f'facts={{"finite":{fact}}}' for fact in (finite, out))
    into, result = (f"{role} float32[4,8] {fact}" for role, fact in zip(("x", "result"), facts, strict=True))
    return layer(into, result, **{"context": '{"autocast":"off","grad_mode":"on","outermost":true}', **other})


def test_a_model_keeps_values_finite() -> None:
    assert verdicts(of(values("true", "true"), "train.Net.forward"), results.FINITE) == [True]
    assert verdicts(of(values("true", "false"), "train.Net.forward"), results.FINITE) == [False]
    assert verdicts(of(values("false", "false"), "train.Net.forward"), results.FINITE) == []
    assert verdicts(of(values("true", "false"), FORWARD), results.FINITE) == []
    assert verdicts(of(values("true", "false", context=OFF), "train.Net.forward"), results.FINITE) == []


def test_infinite_mask_values_inside_a_model_are_allowed() -> None:
    tensors = ('x float32[4] facts={"finite":true}', 'result float32[4] facts={"finite":false}')
    assert verdicts(of(function(*tensors), "train.f"), results.FINITE) == [False]
    assert verdicts(of(function(*tensors, context='{"training":true}'), "train.f"), results.FINITE) == []


def test_an_infinite_argument_is_an_infinite_input() -> None:
    tensors = ('x float32[4] facts={"finite":true}', 'result float32[4] facts={"finite":false}')
    assert verdicts(of(function(*tensors, args='{"fill":-1.0}'), "train.f"), results.FINITE) == [False]
    assert verdicts(of(function(*tensors, args='{"fill":{"float":"-inf"}}'), "train.f"), results.FINITE) == []


CLIP = "torch.nn.utils.clip_grad_norm_"


@pytest.mark.parametrize(
    ("after", "expected"),
    [("0.5", [True]), ("1.001", [True]), ("1.5", [False]), ('{"float":"nan"}', []), ('{"float":"inf"}', [])],
)
def test_clipping_reaches_the_requested_norm(after: str, expected: list[bool]) -> None:
    body = call(f"lifecycle {CLIP}", args='{"max_norm":1}', result=f'{{"norm_after":{after}}}')
    assert verdicts(of(body, CLIP), results.MAX_NORM) == expected


@pytest.mark.parametrize("scaled_alike", ["true", "false"])
def test_clipping_scales_all_gradients_alike(scaled_alike: str) -> None:
    body = call(f"lifecycle {CLIP}", args='{"max_norm":1}', result=f'{{"norm_after":1.0,"alike":{scaled_alike}}}')
    assert verdicts(of(body, CLIP), results.SCALED_ALIKE) == [scaled_alike == "true"]


def test_rows_of_the_users_own_functions_sum_to_one() -> None:
    def routed(rows: str, shape: str = "4,8") -> str:
        return function("x float32[4,8]", f'result float32[{shape}] facts={{"rows_sum_to_one":{rows}}}')

    assert verdicts(of(routed("true"), "train.f"), results.ROWS) == [True]
    assert verdicts(of(routed("false"), "train.f"), results.ROWS) == [False]
    assert verdicts(of(routed("true", "4"), "train.f"), results.ROWS) == []


def normalised(before: float, after: float) -> str:
    """A root mean square norm of 4 rows of 16, with these root mean squares."""
    tensors = (
        f'{role} float32[4,16] facts={{"norm":{scale * 8}}}' for role, scale in (("x", before), ("result", after))
    )
    return layer(*tensors, module="train.RMSNorm")


def test_a_normalising_layer_brings_its_input_to_unit_scale() -> None:
    api = "train.RMSNorm.forward"
    assert verdicts(of(normalised(0.02, 1.1), api), results.UNIT) == [True]
    assert verdicts(of(normalised(0.02, 0.25), api), results.UNIT) == [False]  # divided by the norm instead of its mean
    assert verdicts(of(normalised(0.9, 0.25), api), results.UNIT) == []
    assert verdicts(of(normalised(0.0, 0.0), api), results.UNIT) == []
    function_ = normalised(0.02, 1.1).replace(f"module {api} < {FORWARD}", f"project {api}")
    assert verdicts(of(function_, api), results.UNIT) == []


def touched(changed: str, storage: str = "~1", name: str = "f") -> str:
    return call(
        f"project train.{name}",
        f'state[w] float32[4,8] storage={storage} facts={{"changed":{changed}}}',
        "result float32[4,8] storage=~9",
    )


def test_arguments_are_left_as_they_were() -> None:
    left = Property(LEAVES_ARGUMENT, "state[w]", results.UNCHANGED)
    assert verdicts(of(touched("false"), "train.f"), left) == [True]
    assert verdicts(of(touched("true"), "train.f"), left) == [False]
    assert verdicts(of(touched("true", storage="~9"), "train.f"), left) == []
    assert verdicts(of(touched("true", name="f_"), "train.f_"), left) == []
    module = touched("true").replace("project train.f", f"module train.f < {FORWARD}")
    assert verdicts(of(module, "train.f"), left) == []


FILLED = Property(LEAVES_ARGUMENT, "weight", results.CHANGED)


@pytest.mark.parametrize(
    ("stage", "memory", "occasion_count"), [("setup", "Net.a", 1), ("setup", "~1", 0), ("train", "Net.a", 0)]
)
def test_a_function_that_fills_parameters_during_set_up_fills_each(
    stage: str, memory: str, occasion_count: int
) -> None:
    for changed in (True, False):
        facts_ = f'facts={{"changed":{str(changed).lower()}}}'
        body = call("project train.fill", f"weight float32[4,8] storage={memory} {facts_}")
        (window,) = from_text(f"window {stage} step=0\n{body}")
        occasions = [
            occasion
            for occasion in APIOutput().occasions(window)
            if FILLED in occasion.held or FILLED in (occasion.failed or ())
        ]
        assert verdicts(occasions, FILLED) == [changed] * occasion_count
        assert all(occasion.variables == ("Net.a",) for occasion in occasions)


WAIT = "torch.distributed.Work.wait"


def test_a_sent_tensor_stays_unchanged_until_wait() -> None:
    kept = Property(LEAVES_ARGUMENT, "sent", results.UNCHANGED)
    for changed in (True, False):
        wait = call(f"lifecycle {WAIT}", f'sent float32[4] facts={{"changed":{str(changed).lower()}}}')
        assert verdicts(of(wait, WAIT), kept) == [not changed]
    assert verdicts(of(call(f"lifecycle {WAIT}", "received float32[4] fingerprint=3"), WAIT), kept) == []
    needed = APIOutput.needs(Subject(WAIT, "result"), kept)
    assert "torch.distributed.isend" in needed.calls and ("torch.distributed.isend", "contents") in needed.call_values


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_a_batch_stays_as_large_as_it_was() -> None:
    batch, shape = (Property(RETURNS_SIZE, of + "images") for of in (results.BATCH, results.SHAPE))
    good = of(function("images float32[50,8]", "result float32[50,2]"), "train.f")
    assert verdicts(good, batch) == [True] and verdicts(good, shape) == [False]
    assert verdicts(of(function("images float32[50,8]", "result float32[1,2]"), "train.f"), batch) == [False]
    assert verdicts(of(function("images float32[50,8]", "result float32[]"), "train.f"), batch) == [False]
    assert verdicts(of(function("images float32[1,8]", "result float32[1,8]"), "train.f"), batch) == []


def test_a_list_becomes_a_batch_of_its_length() -> None:
    entries = Property(RETURNS_SIZE, "length of images")
    for count, out, expected in ((50, 50, [True]), (50, 1, [False]), (1, 1, [])):
        body = function(f"result float32[{out},8]", args=f'{{"len(images)":{count}}}')
        assert verdicts(of(body, "train.f"), entries) == expected


def test_the_first_result_with_dimensions_is_compared() -> None:
    batch = Property(RETURNS_SIZE, "batch of x", "result[logits]")
    body = function("x int64[4,8]", "result[loss] float32[]", "result[logits] float32[4,8,9]")
    assert verdicts(of(body, "train.f"), batch) == [True]


def generated(into: int, out: int, limit: int) -> str:
    return function(f"ids int64[2,{into}]", f"result int64[2,{out}]", args=f'{{"max_new_tokens":{limit},"seed":1234}}')


def test_no_more_is_generated_than_allowed() -> None:
    bound = Property(RETURNS_MORE, "at most max_new_tokens")
    assert verdicts(of(generated(8, 24, 16), "train.f"), bound) == [True]
    assert verdicts(of(generated(8, 27, 16), "train.f"), bound) == [False]
    assert verdicts(of(generated(8, 20, 16), "train.f"), bound) == [], "below the bound nothing is known of it"
    assert verdicts(of(generated(8, 24, 16), "train.f"), Property(RETURNS_MORE, "at most seed")) == []
    tokens = function(args='{"len(prompt)":8,"n":4}', result='{"length":12}')
    assert verdicts(of(tokens, "train.f"), Property(RETURNS_MORE, "at most n")) == [True]


def test_the_requested_number_is_built() -> None:
    exactly, bound = (Property(RETURNS_LENGTH, f"{how} n_layers") for how in ("equal to", "at most"))
    for requested, built, equal, at_most in (
        (4, 4, [True], [True]),
        (4, 3, [False], []),
        (4, 5, [False], [False]),
        (2, 2, [], []),  # perhaps two results, and no list
    ):
        occasions = of(function(args=f'{{"n_layers":{requested}}}', result=f'{{"length":{built}}}'), "train.f")
        assert (verdicts(occasions, exactly), verdicts(occasions, bound)) == (equal, at_most)


def test_texts_flags_and_lengths_are_no_limits() -> None:
    body = function(args='{"deep":true,"len(names)":4,"name":"x"}', result='{"length":4}')
    assert judged(of(body, "train.f")) == {Property(RETURNS_SIZE, "length of names")}
    assert of(function(args='{"n":5}', result='{"length":5,"value":"hello"}'), "train.f") == []


def test_rules_about_lengths_name_the_argument_they_rest_on() -> None:
    of_f = functools.partial(APIOutput.argument_of, Subject("train.f", "result"))
    assert of_f(Property(RETURNS_LENGTH, "equal to n_layers")) == ("train.f", "n_layers")
    assert of_f(Property(RETURNS_WIDTH, "equal to width")) == ("train.f", "width")
    assert of_f(Property(RETURNS_MORE, "at most n")) == ("train.f", "n")
    assert of_f(Property(RETURNS_SIZE, "batch of x")) is None


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_equal_calls_share_a_verdict_and_other_arguments_do_not() -> None:
    """The cache distinguishes 4 and 4.0: they are equal, but a limit is an integer."""
    body = "".join(function(args=f'{{"n":{n}}}', result='{"length":4}') for n in ("4.0", "4", "true", "4"))
    assert verdicts(of(body, "train.f"), Property(RETURNS_LENGTH, "equal to n")) == [True, True]


EVERYTHING = (
    linear("float32", "bfloat16")
    + function("x float32[4,8]", "result float32[4,8]", args='{"kind":"float32","n":4}', result='{"length":4}')
    + layer("x float32[4,8] requires_grad", "result float32[4,2] requires_grad")
    + values("true", "true")
    + normalised(0.02, 1.0)
    + touched("false")
    + generated(8, 24, 16)
    + call(f"lifecycle {CLIP}", args='{"max_norm":1.0}', result='{"norm_after":0.5}')
    + linear("float32", "bfloat16", function=f"module torch.nn.Linear.forward < {FORWARD}")
)


def test_it_keeps_the_promises_of_a_relation() -> None:
    windows = from_text("".join(f"window train step={step}\n{EVERYTHING}" for step in range(1, 5)))
    assert check_relation(APIOutput, windows) > 30


@pytest.mark.parametrize(
    ("api", "prop", "sentence"),
    [
        (LINEAR, AUTOCAST, "linear returns a tensor with the dtype of autocast"),
        ("train.f", Property(RETURNS_DTYPE, "int64", "result[0]"), "a tensor (result[0]) of int64"),
        ("train.f", Property(RETURNS_SIZE, "batch of x"), "train.f returns a tensor with the batch of x"),
        ("train.f", Property(RETURNS_SIZE, "length of x"), "train.f returns an entry for each in x"),
        (
            "train.f",
            Property(RETURNS_MORE, "at most n"),
            "returns a sequence that is longer than what goes in by at most n",
        ),
        ("train.f", Property(RETURNS_LENGTH, "equal to n"), "returns something with a length equal to n"),
        (CLIP, results.MAX_NORM, "clip_grad_norm_ leaves gradients with a norm of max_norm at most"),
        (CLIP, results.SCALED_ALIKE, "clip_grad_norm_ scales all gradients of an optimizer by the same factor"),
    ],
)
def test_sentences_are_readable(api: str, prop: Property, sentence: str) -> None:
    assert sentence in APIOutput.describe(Subject(api, "result"), prop)
