"""Expectations for kinds of calls, independent of names: good, bad and unjudged cases."""

from __future__ import annotations

import pytest

from traincheck.relations.api_output.call_kinds import (
    AS_MANY_LAYERS,
    GRAIN,
    IN_LOW_PRECISION,
    SCALED,
    SEVERAL_ROWS,
    WITHIN_BOUND,
)
from traincheck.relations.api_output.relation import APIOutput
from traincheck.testing.conformance import check_relation
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.call_kinds import LAYERED, NORMALISATION, is_layer_count, taking
from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.properties import GIVES_BACK

NEXT = "torch.utils.data.DataLoader.__next__"
BOUND = taking("max_new_tokens")


def verdicts(body: str, kind: str, prop: Property) -> list[bool]:
    """Return for each occasion that judged `prop` whether it held."""
    (window,) = from_text(f"window train step=1\n{body}")
    occasions = [occasion for occasion in APIOutput().occasions(window) if occasion.subject == Subject(kind, GRAIN)]
    return [prop in occasion.held for occasion in occasions if prop in (*occasion.held, *(occasion.failed or ()))]


def writes(given: int, back: int, *, limit: int = 12, dtype: str = "int64") -> str:
    return f"""  project story.write args={{"max_new_tokens":{limit}}}
    tensor prompt int64[2,{given}]
    tensor result {dtype}[2,{back}]
"""


@pytest.mark.parametrize(
    ("body", "judged"),
    [
        (writes(4, 16), [True]),
        (writes(4, 20), [False]),
        (writes(48, 12), [True]),
        (writes(48, 44), [False]),
        (writes(48, 13), [True]),
        (writes(4, 10), []),
        (writes(48, 44, dtype="float32"), []),
    ],
    ids=["continued", "too far", "without the prompt", "too long", "a token to begin with", "ended early", "no tokens"],
)
def test_a_function_writes_within_its_bound(body: str, judged: list[bool]) -> None:
    assert verdicts(body, BOUND, WITHIN_BOUND) == judged


def norm(before: float, after: float, result: str = '{"scale":1.0,"shifted_scale":2.0}', training: str = "true") -> str:
    return f"""  module net.RMSNorm.forward < torch.nn.Module.forward context={{"training":{training}}} result={result}
    tensor x float32[8,16] facts={{"norm":{before}}}
    tensor result float32[8,16] facts={{"norm":{after}}}
"""


@pytest.mark.parametrize(
    ("body", "judged"),
    [
        (norm(113.1, 11.3), [True]),
        (norm(113.1, 2.8), [False]),
        (norm(0.001, 0.001), []),
        (norm(113.1, 0.001), []),
        (norm(113.1, 0.0, '{"scale":0.0,"shifted_scale":1.0}'), [True]),
        (norm(113.1, 2.8, "{}"), []),
        (norm(113.1, 2.8, training="false"), []),
    ],
    ids=[
        "of unit scale",
        "divided by the L2 norm",
        "nothing comes in",
        "the same comes in everywhere",
        "a weight of zero",
        "without a weight",
        "evaluation",
    ],
)
def test_a_normalising_layer_keeps_the_scale_of_its_weight(body: str, judged: list[bool]) -> None:
    assert verdicts(body, NORMALISATION, SCALED) == judged


def batch(*shapes: str) -> str:
    tensors = (f"    tensor result[{index}] float32[{shape}]\n" for index, shape in enumerate(shapes))
    return f'  lifecycle {NEXT} receiver=DataLoader#1 args={{"batch_size":8}}\n{"".join(tensors)}'


@pytest.mark.parametrize(
    ("body", "judged"),
    [
        (batch("8,3,4", "8"), [True]),
        (batch("1,8,3,4", "8"), [False]),
        (batch("8,3,4", "1,4"), []),
        (batch("1,3,4", "1"), []),
        (batch("8,3,4"), []),
        (batch("1,8,3", "1"), [False]),
        (batch("1,70", "1,70"), []),
        (batch("1,70", "1,70", "9"), []),
        (batch("1,70", "1,70,2", "1,1,70,70", "9", "9"), []),
        (batch("1,70", "8"), [False]),
        (batch("1,8,30", "1,8,30", "8"), [False]),
        (batch("1,50,3", "1,6", "8"), [False]),
    ],
    ids=[
        "rows",
        "one row",
        "a mask for all",
        "a single sample",
        "nothing next to it",
        "all are in one row",
        "packed",
        "packed, with boundaries",
        "packed, with a mask of blocks",
        "one of two lost its rows",
        "all nested, labels not",
        "rows of unlike lengths",
    ],
)
def test_a_batch_is_not_made_into_one_sample(body: str, judged: list[bool]) -> None:
    assert verdicts(body, NEXT, SEVERAL_ROWS) == judged


def model(*dtypes: str, autocast: str = "bfloat16") -> str:
    """Products with these results, in a layer that disables autocast and casts itself."""
    products = "".join(
        f'      function torch.nn.functional.linear context={{"autocast":"off"}}\n        tensor result {dtype}[4,2]\n'
        for dtype in dtypes
    )
    return f"""  module Net.forward < torch.nn.Module.forward context={{"autocast":"{autocast}"}}
    module Layer.forward < torch.nn.Module.forward context={{"autocast":"off"}}
{products}"""


@pytest.mark.parametrize(
    ("body", "judged"),
    [
        (model("bfloat16", "bfloat16", "float32"), [True]),
        (model("bfloat16", "float32"), [False]),
        (model("float32", autocast="off"), []),
        (model(), []),
    ],
    ids=["one in full precision", "too few", "no autocast", "no products"],
)
def test_most_products_of_a_model_under_autocast_have_its_type(body: str, judged: list[bool]) -> None:
    assert verdicts(body, "torch.nn.Module.forward", IN_LOW_PRECISION) == judged


def built(counts: str, args: str = '{"num_layers":8,"heads":4}') -> str:
    return f'  project net.Tower.__init__ args={args} result={{"layers":"{counts}"}}\n'


@pytest.mark.parametrize(
    ("body", "judged"),
    [
        (built("1+8+16"), [True]),
        (built("1+9"), [True]),
        (built("1+6+12"), [False]),
        (built(""), []),
        (built("1+6", '{"num_layers":1}'), []),
    ],
    ids=["as many", "one more", "fewer", "nothing built", "a single one"],
)
def test_the_requested_number_of_layers_is_built(body: str, judged: list[bool]) -> None:
    assert verdicts(body, LAYERED, AS_MANY_LAYERS) == judged


def test_layer_count_arguments_are_recognised_by_name() -> None:
    names = ["num_layers", "n_layer", "nlayers", "layers", "num_hidden_layers", "n_blocks"]
    others = ["layer", "depth", "frozen_layers", "layer_dim", "num_heads", "n"]
    assert [name for name in (*names, *others) if is_layer_count(name)] == names


def test_it_keeps_the_promises_of_a_relation() -> None:
    body = writes(4, 16) + norm(113.1, 2.8) + batch("8,3,4", "8") + model("bfloat16") + built("8")
    windows = from_text(f"window train step=1\n{body}window train step=2\n{body}")
    assert check_relation(APIOutput, windows) >= 5
    property_of = {BOUND: WITHIN_BOUND, NORMALISATION: SCALED, NEXT: SEVERAL_ROWS, LAYERED: AS_MANY_LAYERS}
    for kind, prop in property_of.items():
        assert APIOutput.describe(Subject(kind, GRAIN), prop) and prop.verb == GIVES_BACK
