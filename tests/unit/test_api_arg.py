"""APIArg on hand-written windows: good, bad and unjudged cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traincheck.relations.api_arg.call_arguments import NO_ROWS, NOT_ZERO, ROWS, SEVERAL
from traincheck.relations.api_arg.mode_arguments import OFF
from traincheck.relations.api_arg.rank_calls import AS_OFTEN, IN_ORDER, SENT
from traincheck.relations.api_arg.reinitialization import FRESH
from traincheck.relations.api_arg.relation import APIArg
from traincheck.relations.api_arg.worker_seeds import RENEWED
from traincheck.relations.comparison import FIRST
from traincheck.relations.parts import ITER, NEXT
from traincheck.sources.tensors.call_summaries import MAX_READ_CALLS
from traincheck.testing.conformance import check_relation
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.events import Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import (
    ARGUMENT_AGREES,
    ARGUMENT_SIZE,
    ARGUMENT_VALUES,
    COMPARES_CALLS,
    DISTINCT,
    EQUAL,
    WORKER_STATES,
)

DROPOUT, SDPA = "torch.nn.functional.dropout", "torch.nn.functional.scaled_dot_product_attention"
LOSS, SOFTMAX = "torch.nn.functional.cross_entropy", "torch.nn.functional.softmax"
FILLING = Subject("torch.nn.init", "place")
WORKERS = Subject(NEXT, "workers")


def window(body: str, stage: str = "train") -> Window:
    (parsed,) = from_text(f"window {stage} step=1\n{body}")
    return parsed


def of(body: str, subject: Subject, stage: str = "train") -> list[Occasion]:
    return [occasion for occasion in APIArg().occasions(window(body, stage)) if occasion.subject == subject]


def verdicts(occasions: list[Occasion], prop: Property) -> list[bool]:
    """Return for each occasion that judged `prop` whether it held."""
    return [prop in occasion.held for occasion in occasions if prop in occasion.held or prop in (occasion.failed or ())]


# -- one call ----------------------------------------------------------------------------------------------------------


def attention(p: str, *, training: str, within: str = "Net") -> str:
    context = f'{{"training":{training},"grad_mode":"on"}}'
    return f"""
  module {within}.forward < torch.nn.Module.forward receiver={within} context={{"training":{training}}}
    function {SDPA} context={context} args={{"dropout_p":{p},"is_causal":true,"scale":8,"mode":"x"}}
"""


def steps(*bodies: tuple[str, str]) -> list[Window]:
    return from_text("".join(f"window {stage} step={n}\n{body}" for n, (stage, body) in enumerate(bodies)))


def switched(windows: list[Window], api: str) -> list[Occasion]:
    relation = APIArg()
    occasions = [occasion for window in windows for occasion in relation.occasions(window)]
    return [occasion for occasion in occasions if occasion.subject == Subject(api, "switch")]


TRAINED = ("train", attention("0.1", training="true"))
SWITCHED_OFF = Property(ARGUMENT_AGREES, "dropout_p", OFF)


@pytest.mark.parametrize(("p", "holds"), [("0.0", True), ("0", True), ("0.1", False)])
def test_dropout_is_switched_off_in_evaluation(p: str, holds: bool) -> None:
    assert verdicts(switched(steps(TRAINED, ("eval", attention(p, training="false"))), SDPA), SWITCHED_OFF) == [holds]


@pytest.mark.parametrize(
    "windows",
    [
        steps(("train", attention("0.0", training="true")), ("eval", attention("0.1", training="false"))),
        steps(TRAINED, ("eval", attention("0.1", training="false", within="Other"))),
        steps(TRAINED, TRAINED),
        steps(("train", attention("1", training="true")), ("eval", attention("1", training="false"))),
    ],
    ids=["off in training as well", "another module", "no evaluation", "a count"],
)
def test_only_modules_active_in_training_must_be_off(windows: list[Window]) -> None:
    assert verdicts(switched(windows, SDPA), SWITCHED_OFF) == []


def test_modules_active_in_training_are_remembered_after_a_gap() -> None:
    first, second = steps(TRAINED, ("eval", attention("0.1", training="false")))
    assert verdicts(switched([first, replace(second, index=2)], SDPA), SWITCHED_OFF) == [False]


@pytest.mark.parametrize("name", ["training", "train"])
@pytest.mark.parametrize(("given", "mode", "holds"), [("true", "true", True), ("true", "false", False)])
def test_a_flag_is_the_mode_of_the_module_around(name: str, given: str, mode: str, holds: bool) -> None:
    body = f'  function {DROPOUT} context={{"training":{mode}}} args={{"{name}":{given}}}\n'
    (occasion,) = of(body, Subject(DROPOUT, "switch"))
    assert (occasion.held if holds else occasion.failed) == {Property(ARGUMENT_AGREES, name)}


def test_only_the_mode_explains_the_argument() -> None:
    """A flag that is set only in training, or only with gradients, has no distinguishing reason."""
    body = f'  function {DROPOUT} context={{"training":true,"grad_mode":"off"}} args={{"training":true}}\n'
    (occasion,) = of(body, Subject(DROPOUT, "switch"))
    assert occasion.context == ()


def test_flags_outside_modules_are_not_judged() -> None:
    body = f"""
  function {DROPOUT} args={{"training":true}}
  module Net.forward < torch.nn.Module.forward context={{"training":true}} args={{"training":true}}
"""
    assert of(body, Subject(DROPOUT, "switch")) == of(body, Subject("Net.forward", "switch")) == []


def loss(
    rows: str = "false", *, grad: str = "requires_grad", result: str = "float32[] requires_grad", zero: str = "false"
) -> str:
    read = f'facts={{"finite":true,"rows_sum_to_one":{rows},"zero":{zero}}}'
    return f"""  function {LOSS}
    tensor input float32[8,4] {grad} {read}
    tensor target float32[8,4] facts={{"finite":true,"rows_sum_to_one":true,"zero":false}}
    tensor result {result}
"""


def about(detail: str, name: str = "input") -> Property:
    return Property(ARGUMENT_VALUES, name, detail)


def test_a_loss_is_given_logits_and_no_probabilities() -> None:
    good, bad = of(loss() + loss("true", zero="true"), Subject(LOSS, "argument"))
    assert good.held == {about(NO_ROWS), about(NOT_ZERO)} and good.failed == {about(ROWS)}
    assert bad.held == {about(ROWS)} and bad.failed == {about(NO_ROWS), about(NOT_ZERO)}


def test_only_predictions_that_go_into_a_loss_are_judged_by_their_values() -> None:
    subject = Subject(LOSS, "argument")
    assert of(loss(grad=""), subject) == []
    assert of(loss(result="float32[8] requires_grad"), subject) == []
    single = loss().replace("    tensor target", "    tensor result")
    assert of(single, subject) == []


def test_values_are_recorded_for_the_loss_only() -> None:
    body = loss().replace(f"function {LOSS}", "module torch.nn.CrossEntropyLoss.forward < torch.nn.Module.forward")
    assert len(of(body, Subject("torch.nn.CrossEntropyLoss.forward", "argument"))) == 1
    assert of(body, Subject("torch.nn.Module.forward", "argument")) == []


def softmax(shape: str, dim: int, grad: str = "requires_grad") -> str:
    return f"""  function {SOFTMAX} args={{"dim":{dim}}}
    tensor input float32[{shape}] {grad}
    tensor result float32[{shape}] {grad}
"""


def test_a_softmax_needs_more_than_one_logit() -> None:
    several = Property(ARGUMENT_SIZE, "input", SEVERAL)
    backward = "  lifecycle torch.autograd.backward\n"
    calls = softmax("8,4", -1) + softmax("8,1", -1) + softmax("8,1", 0) + softmax("8,1", 1)
    subject = Subject(SOFTMAX, "argument")
    assert verdicts(of(calls + backward, subject), several) == [True, False, True, False]
    assert of(softmax("8,1", -1, grad="") + softmax("8,1", 5) + backward, subject) == []
    assert of(softmax("8,2,1,1", -1) + softmax("8,1,1", -2) + backward, subject) == [], "a sequence of one token"
    assert verdicts(of(softmax("8,2,5,1", -1) + backward, subject), several) == [False]
    assert of(backward + softmax("8,1", -1), subject) == [], "no gradient is lost: text is generated from one token"


# -- the calls of a step -----------------------------------------------------------------------------------------------


def fills(*names: str, site: str = "train.py:9:init", api: str = "torch.nn.init.normal_") -> str:
    return "".join(f"  function {api} site={site}\n    tensor tensor float32[4,4] storage={name}\n" for name in names)


def test_one_place_does_not_fill_the_same_memory_again_and_again() -> None:
    good = of(fills("Net.a", "Net.b", "Net.c"), FILLING, "setup")
    assert verdicts(good, FRESH) == [True] and good[0].variables == ()
    (bad,) = of(fills("Net.a", "Net.b", "Net.c", "Net.a", "Net.b", "Net.c"), FILLING, "setup")
    assert FRESH in (bad.failed or ()) and bad.variables == ("Net.a", "Net.b", "Net.c")
    assert bad.seq == 0


def test_tied_weights_and_other_places_may_fill_again() -> None:
    tied = fills("Net.a", "Net.b", "Net.c", "Net.a")
    twice = fills("Net.a", "Net.b", "Net.c") + fills("Net.a", "Net.b", "Net.c", site="train.py:30:again")
    other = fills("Net.a", "Net.b", "Net.c") + fills("Net.a", "Net.b", "Net.c", api="torch.Tensor.normal_")
    assert verdicts(of(tied, FILLING, "setup"), FRESH) == [True]
    assert verdicts(of(twice, FILLING, "setup"), FRESH) == [True, True]
    assert verdicts(of(other, FILLING, "setup"), FRESH) == [True, True]


def test_little_memory_and_memory_filled_in_training_are_not_judged() -> None:
    assert of(fills("Net.a", "Net.a"), FILLING, "setup") == []
    assert of(fills(*"aabbcc"), FILLING, "train") == []
    assert of(fills(*"aabbcc", api="torch.nn.init.ones_"), FILLING, "setup") == []


def experts(*factors: float, shape: str = "4,8") -> str:
    return "".join(
        f"""  project moe.dispatch args={{"factor":{factor},"rows":{index},"name":"x{index}"}}
    tensor tokens float32[{shape}] fingerprint={index}
"""
        for index, factor in enumerate(factors)
    )


def test_calls_of_a_step_share_their_arguments() -> None:
    subject = Subject("moe.dispatch", "step")
    same = Property(COMPARES_CALLS, "value of factor", EQUAL)
    assert verdicts(of(experts(1.5, 1.5, 1.5), subject), same) == [True]
    assert verdicts(of(experts(1.5, 1.5, 1.25), subject), same) == [False]
    assert of(experts(1.5), subject) == []
    (occasion,) = of(experts(1.5, 1.5), subject)
    assert occasion.held == {
        same,
        Property(COMPARES_CALLS, "data of tokens", DISTINCT),
        Property(COMPARES_CALLS, "dtype of tokens", EQUAL),
    }


def test_sampled_contents_refute_but_do_not_confirm() -> None:
    """See Note [Contents of a sample]: a full collection reads the first calls of a step, a live check all of them."""
    subject, distinct, equal = (
        Subject("moe.dispatch", "step"),
        *(Property(COMPARES_CALLS, "data of tokens", way) for way in (DISTINCT, EQUAL)),
    )
    unread = experts(1.5).replace(" fingerprint=0", "")
    assert verdicts(of(experts(1.5, 1.5) + unread, subject), distinct) == []
    assert verdicts(of(experts(1.5, 1.5) + unread, subject), equal) == [False]
    assert verdicts(of(experts(1.5) + experts(1.5) + unread, subject), equal) == []
    assert verdicts(of(experts(1.5) + experts(1.5), subject), equal) == [True]


def batches(*prints: tuple[int, int], loader: str = "DataLoader#1", first: bool = False) -> str:
    begins = ' result={"first_batch":true}' if first else ""
    return "".join(
        f"""  lifecycle {NEXT} receiver={loader}{begins}
    tensor result[0] float32[4,8] fingerprint={images}
    tensor result[1] int64[4] fingerprint={labels}
"""
        for images, labels in prints
    )


OTHER_BATCH, FETCHES = Property(COMPARES_CALLS, "data of result", DISTINCT), Subject(NEXT, "receiver")


def test_a_batch_counts_as_one_quantity() -> None:
    """Equal labels are chance; equal images and labels are the same batch."""
    assert verdicts(of(batches((1, 7), (2, 7)), FETCHES), OTHER_BATCH) == [True]
    assert verdicts(of(batches((1, 7), (1, 7)), FETCHES), OTHER_BATCH) == [False]


def test_each_loader_is_compared_with_itself_while_the_model_trains() -> None:
    of_two = batches((1, 7)) + batches((1, 7), loader="DataLoader#2")
    assert of(of_two, FETCHES) == [] and of(of_two, Subject(NEXT, "step")) == []
    assert of(batches((1, 7), (1, 7)), FETCHES, "eval") == []


def test_a_look_at_a_batch_before_the_pass_is_no_repeated_batch() -> None:
    first, second, backward = batches((1, 7), first=True), batches((2, 7)), "  lifecycle torch.autograd.backward\n"
    assert of(first + first, FETCHES) == []
    assert verdicts(of(first + first + second, FETCHES), OTHER_BATCH) == [True]
    assert verdicts(of(first + backward + first + backward, FETCHES), OTHER_BATCH) == [
        False
    ]  # each micro-step starts over
    assert verdicts(of(first + first + batches((1, 7)), FETCHES), OTHER_BATCH) == [False]  # twice within one pass


def test_few_numbers_may_be_equal_by_chance() -> None:
    def backward(shape: str) -> str:
        return (
            f"  lifecycle torch.autograd.backward\n    tensor tensors float32[{shape}] fingerprint=5 storage=~1\n" * 2
        )

    again = (
        Property(COMPARES_CALLS, "storage of tensors", DISTINCT),
        Property(COMPARES_CALLS, "data of tensors", DISTINCT),
    )
    subject = Subject("torch.autograd.backward", "step")
    assert [verdicts(of(backward(""), subject), prop) for prop in again] == [[False], []]
    assert [verdicts(of(backward("4,4"), subject), prop) for prop in again] == [[False], [False]]


def test_contents_are_compared_of_as_many_calls_as_a_full_recording_reads() -> None:
    """The recording has no facts about the third argument for a rule."""
    assert FIRST == MAX_READ_CALLS
    body = "".join(
        f"  lifecycle torch.autograd.backward\n    tensor tensors float32[8] fingerprint={fingerprint}\n"
        for fingerprint in (1, 2, 1)
    )
    occasions = of(body, Subject("torch.autograd.backward", "step"))
    assert verdicts(occasions, Property(COMPARES_CALLS, "data of tensors", DISTINCT)) == [True]


def test_buffers_for_other_ranks_may_be_used_again() -> None:
    gather = "torch.distributed.all_gather"
    body = f"  lifecycle {gather}\n    tensor tensor float32[8] fingerprint=1 storage=~1\n" * 2
    assert of(body, Subject(gather, "step")) == []


def test_functions_and_modules_of_torch_are_not_compared() -> None:
    linear = "  function torch.nn.functional.linear\n    tensor input float32[4] storage=~1\n" * 2
    module = "  module torch.nn.Linear.forward < torch.nn.Module.forward receiver=a\n    tensor input float32[4]\n" * 2
    assert [
        occasion for occasion in APIArg().occasions(window(linear + module)) if occasion.subject.grain == "step"
    ] == []


def test_all_layers_are_given_the_same_numbers() -> None:
    def block(length: int, training: str = "true") -> str:
        return (
            f'  module net.Block.forward < torch.nn.Module.forward args={{"length":{length},"training":{training}}}\n'
            f"    tensor mask float32[4,4]\n"
        )

    subject = Subject("net.Block.forward", "step")
    same = frozenset((Property(COMPARES_CALLS, "value of length", EQUAL),))
    assert [occasion.held for occasion in of(block(4) + block(4, "false"), subject)] == [same]
    assert [occasion.failed for occasion in of(block(4) + block(5), subject)] == [same]


def test_calls_in_several_threads() -> None:
    calls = "".join(
        f'  project train.work args={{"batch":4,"flag":{str(thread == 0).lower()},"part":{thread}}} thread={thread} '
        f"seq={2 * thread} end={2 * thread + 1} parent=-1\n"
        for thread in (0, 1)
    )
    (occasion,) = of(calls, Subject("train.work", "threads"))
    assert occasion.held == {
        Property(COMPARES_CALLS, "value of batch", EQUAL),
        Property(COMPARES_CALLS, "value of part", DISTINCT),
    }
    assert Property(COMPARES_CALLS, "value of flag", DISTINCT) not in {*occasion.held, *(occasion.failed or ())}


# -- workers -----------------------------------------------------------------------------------------------------------


def fetched(*states: tuple[int, ...], attribute: str = "random.numpy") -> str:
    """A fetch with rounds of states, one for each worker."""
    lines = [f"  lifecycle {NEXT} receiver=DataLoader#1\n"]
    for round_ in states:
        for worker, state in enumerate(round_):
            lines.append(f'    reading worker.{attribute} "DataLoader#1 worker {worker}" {state}\n')
    return "".join(lines)


def states(detail: str) -> Property:
    return Property(WORKER_STATES, "random.numpy", detail)


def test_workers_begin_in_different_states() -> None:
    good, bad = of(fetched((1, 2), (3, 4)) + fetched((5, 5)), WORKERS)
    assert states(DISTINCT) in good.held and states(EQUAL) in (good.failed or ())
    assert states(DISTINCT) in (bad.failed or ()) and states(EQUAL) in bad.held
    assert of(fetched((1,)) + fetched(), WORKERS) == []


def test_one_equal_round_among_several_counts() -> None:
    (occasion,) = of(fetched((1, 2), (3, 3)), WORKERS)
    assert states(DISTINCT) in (occasion.failed or ()) and states(DISTINCT) not in occasion.held


BEGIN = f"  lifecycle {ITER} receiver=DataLoader#1\n"


def test_each_pass_begins_in_another_state() -> None:
    passes = BEGIN + fetched((1, 2)) + fetched((1, 2)) + BEGIN + fetched((3, 4), (6, 7)) + BEGIN + fetched((3, 5))
    assert verdicts(of(passes, WORKERS), states(RENEWED)) == [True, False]


def test_an_unused_random_state_is_not_judged() -> None:
    persistent = BEGIN + fetched((1, 2), (1, 2)) + BEGIN + fetched((1, 2))
    assert verdicts(of(persistent, WORKERS), states(RENEWED)) == []


def test_a_gap_forgets_the_pass_before() -> None:
    first, second = window(BEGIN + fetched((1, 2), (3, 4))), window(BEGIN + fetched((1, 2)))
    for index, expected in ((1, [False]), (2, [])):
        relation = APIArg()
        list(relation.occasions(first))
        assert verdicts(list(relation.occasions(replace(second, index=index))), states(RENEWED)) == expected


# -- ranks -------------------------------------------------------------------------------------------------------------


def over(*bodies: str) -> list[Occasion]:
    return list(APIArg().across([replace(window(body), rank=rank) for rank, body in enumerate(bodies)]))


def ranks(api: str, occasions: list[Occasion]) -> list[Occasion]:
    return [occasion for occasion in occasions if occasion.subject == Subject(api, "ranks")]


def test_each_rank_has_its_own_batch() -> None:
    """Its size is not compared: the last batch of a rank may be smaller."""
    distinct, same = (
        Property(COMPARES_CALLS, "data of result", DISTINCT),
        Property(COMPARES_CALLS, "shape of result", EQUAL),
    )
    good = ranks(NEXT, over(batches((1, 7)), batches((2, 7))))
    assert verdicts(good, distinct) == [True] and verdicts(good, same) == []
    assert verdicts(ranks(NEXT, over(batches((1, 7)), batches((1, 7)))), distinct) == [False]


def reduced(name: str, before: int, after: int) -> str:
    return f"""  lifecycle torch.distributed.{name}
    tensor tensor float32[4] fingerprint={before}
    tensor result float32[4] fingerprint={after}
"""


def test_reduced_values_are_equal_on_all_ranks() -> None:
    api, same = "torch.distributed.all_reduce", Property(COMPARES_CALLS, "data of result", EQUAL)
    assert verdicts(ranks(api, over(reduced("all_reduce", 1, 9), reduced("all_reduce", 2, 9))), same) == [True]
    assert verdicts(ranks(api, over(reduced("all_reduce", 1, 9), reduced("all_reduce", 2, 8))), same) == [False]


def test_every_rank_issues_the_same_collectives() -> None:
    first, second = reduced("all_reduce", 1, 2), reduced("broadcast", 3, 4)
    whole = Subject("torch.distributed", "ranks").api
    assert verdicts(ranks(whole, over(first + second, first + second)), IN_ORDER) == [True]
    assert verdicts(ranks(whole, over(first + second, second + first)), IN_ORDER) == [False]
    assert verdicts(ranks(whole, over(BEGIN, BEGIN)), IN_ORDER) == []


def test_every_rank_makes_a_call_as_often() -> None:
    """Asked of collectives and of the program's own functions; the rest is the affair of each rank."""
    for api, kind in (("torch.distributed.barrier", "lifecycle"), ("moe.dispatch", "project")):
        assert verdicts(ranks(api, over(f"  {kind} {api}\n", f"  {kind} {api}\n")), AS_OFTEN) == [True]
        (alone,) = ranks(api, over(BEGIN, f"  {kind} {api}\n"))
        assert AS_OFTEN in (alone.failed or ()) and alone.seq == -1
        assert ranks(api, over(f"  {kind} {api}\n")) == []
    clip = '  lifecycle torch.nn.utils.clip_grad_norm_ args={"max_norm":1.0}\n'
    assert ranks("torch.nn.utils.clip_grad_norm_", over(clip, BEGIN)) == []


def exchange(sent: tuple[int, int], expected: tuple[int, int]) -> str:
    lists = (("output_tensor_list", expected), ("input_tensor_list", sent))
    return "  lifecycle torch.distributed.all_to_all\n" + "".join(
        f"    tensor {name}[{index}] float32[{size},8]\n" for name, sizes in lists for index, size in enumerate(sizes)
    )


def test_sent_and_expected_tensors_match() -> None:
    """Uneven sizes are fine as long as both sides agree."""
    api = "torch.distributed.all_to_all"
    agreed = over(exchange(sent=(1, 2), expected=(1, 3)), exchange(sent=(3, 4), expected=(2, 4)))
    assert verdicts(ranks(api, agreed), SENT) == [True]
    odds = over(exchange(sent=(1, 2), expected=(1, 3)), exchange(sent=(3, 4), expected=(5, 4)))
    assert verdicts(ranks(api, odds), SENT) == [False]
    of_three = exchange(sent=(1, 2), expected=(1, 3)) + "    tensor input_tensor_list[2] float32[5,8]\n"
    assert verdicts(ranks(api, over(of_three, of_three)), SENT) == []


# -- the rest ----------------------------------------------------------------------------------------------------------

EVERYTHING = (
    attention("0.0", training="false")
    + loss()
    + softmax("8,4", -1)
    + experts(1.5, 1.5)
    + batches((1, 7), (2, 7))
    + BEGIN
    + fetched((1, 2))
    + BEGIN
    + fetched((3, 4))
)


def test_it_keeps_the_promises_of_a_relation() -> None:
    """A filtered demand gives the same verdicts as a full one; sentences and demands exist."""
    bodies = [("setup", fills(*"abc")), *[("train", EVERYTHING)] * 3]
    windows = from_text("".join(f"window {stage} step={step}\n{body}" for step, (stage, body) in enumerate(bodies)))
    assert check_relation(APIArg, windows) > 15


def test_sentences_are_readable() -> None:
    sentences = {
        (Subject(SDPA, "switch"), SWITCHED_OFF): (
            "scaled_dot_product_attention is called with dropout_p=0 in evaluation, where it is not 0 in training"
        ),
        (Subject(LOSS, "argument"), about(NO_ROWS)): "in the input of cross_entropy, rows do not sum to one",
        (Subject(NEXT, "ranks"), Property(COMPARES_CALLS, "data of result", DISTINCT)): (
            "the calls of DataLoader.__next__ on all ranks have each another contents of the result"
        ),
        (Subject("moe.dispatch", "step"), Property(COMPARES_CALLS, "value of capacity", EQUAL)): (
            "all calls of moe.dispatch in a step have the same value of capacity"
        ),
    }
    for (subject, prop), sentence in sentences.items():
        assert APIArg.describe(subject, prop) == sentence
