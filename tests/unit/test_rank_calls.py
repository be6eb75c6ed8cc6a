"""What is said of calls that ranks make together, and of messages between two of them."""

from __future__ import annotations

from traincheck.relations.api_arg.messages import DTYPE, EVEN, INTACT, ROOM
from traincheck.relations.api_arg.rank_calls import AS_OFTEN, IN_ORDER, SAME_NUMBER, SAME_PURPOSE
from traincheck.relations.api_arg.relation import APIArg
from traincheck.relations.comparison import COMPARED, EQUAL
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

WHOLE = Subject("torch.distributed", "ranks")
REDUCE = Subject("torch.distributed.all_reduce", "ranks")


def over(*ranks: str, relation: APIArg | None = None) -> list[Occasion]:
    windows = [from_text(f"window train step=1 rank={rank}\n{body}")[0] for rank, body in enumerate(ranks)]
    return list((relation or APIArg()).across(windows))


def fate(found: list[Occasion], subject: Subject, prop: Property) -> list[bool]:
    told = [one for one in found if one.subject == subject]
    return [prop in one.held for one in told if prop in one.held or prop in (one.failed or ())]


def collective(name: str, **told: str) -> str:
    facts = ",".join(f'"{key}":"{value}"' for key, value in told.items())
    return f"  lifecycle torch.distributed.{name} result={{{facts}}}\n"


def test_collectives_are_compared_within_their_group() -> None:
    """Ranks 0 and 2 reduce among themselves, ranks 1 and 3 gather."""
    evens, odds = collective("all_reduce", ranks="0+2"), collective("all_gather", ranks="1+3")
    found = over(evens, odds, evens, odds)
    assert fate(found, WHOLE, IN_ORDER) == [True, True]
    assert fate(over(evens, odds, "", odds), REDUCE, AS_OFTEN) == [False]
    assert fate(over(evens + evens, odds, evens, odds), WHOLE, IN_ORDER) == [False, True]
    alone = collective("all_reduce", ranks="0")
    assert over(alone, "") == []


def test_a_scatter_hands_each_rank_its_own_part() -> None:
    def of_rank(name: str, before: int, after: int, dtype: str = "float32") -> str:
        return (
            f"  lifecycle torch.distributed.{name}\n    tensor tensor {dtype}[8] fingerprint={before}\n"
            f"    tensor result {dtype}[8] fingerprint={after}\n"
        )

    for name, judged in (("scatter", []), ("broadcast", [False])):
        subject = Subject(f"torch.distributed.{name}", "ranks")
        found = over(of_rank(name, 1, 3), of_rank(name, 2, 4))
        assert fate(found, subject, Property(COMPARED, "data of tensor", EQUAL)) == judged
        assert fate(found, subject, Property(COMPARED, "data of result", EQUAL)) == judged
        found = over(of_rank(name, 1, 3), of_rank(name, 2, 4, "float64"))
        assert fate(found, subject, Property(COMPARED, "dtype of tensor", EQUAL)) == [False]


def test_ranks_meet_in_a_collective_for_the_same_purpose() -> None:
    dense, embedding, experts = (collective("all_reduce", purpose=f"norm_of(group={name})") for name in "abc")
    assert fate(over(dense + experts, dense + experts), WHOLE, SAME_PURPOSE) == [True]
    (found,) = [one for one in over(dense + embedding, dense + experts) if SAME_PURPOSE in (one.failed or ())]
    assert found.seq == 2, "the second call of the first rank"
    assert fate(over(dense + dense, dense), WHOLE, SAME_PURPOSE) == [], "nobody knows which one is missing"


def test_whole_numbers_are_compared_under_each_word_of_the_name_of_a_function() -> None:
    def returned(name: str, value: int) -> str:
        return f'  project {name} result={{"value":{value}}}\n'

    for name in ("moe.get_capacity", "moe.Gate.expertCapacity", "gating.capacity_of"):
        for other, so in ((3, True), (4, False)):
            found = over(returned(name, 3), returned(name, other))
            for api in (name, "functions named capacity"):
                assert fate(found, Subject(api, "ranks"), SAME_NUMBER) == [so]
            assert fate(found, Subject("functions named get", "ranks"), SAME_NUMBER) == []


def test_an_exchange_tells_whether_it_was_told_how_much_goes_where() -> None:
    def exchange(sizes: str, splits: str) -> str:
        return f"  lifecycle torch.distributed.all_to_all_single args={{{splits}}}\n    tensor input float32[{sizes}]\n"

    told = '"len(input_split_sizes)":2,"len(output_split_sizes)":2'
    for splits, so in ((told, True), ("", False)):
        found = [
            one for one in over(exchange("4,2", splits), exchange("3,2", splits)) if "all_to_all" in one.subject.api
        ]
        assert {value_of(one.context, "splits") for one in found if "shape" in str(one.failed)} == {so}


def message(way: str, peer: int, number: int, what: str = "float32[4]", fingerprint: int = 0, tag: int = 0) -> str:
    role = "tensor" if way != "recv" else "result"
    value = f" fingerprint={fingerprint}" if fingerprint else ""
    told = f'"peer":{peer},"number":{number}'
    return (
        f'  lifecycle torch.distributed.{way} args={{"tag":{tag}}} result={{{told}}}\n    tensor {role} {what}{value}\n'
    )


def test_a_message_is_paired_with_the_one_that_is_received() -> None:
    good = over(message("send", 1, 1, fingerprint=7), message("recv", 0, 1, fingerprint=7))
    assert [fate(good, WHOLE, prop) for prop in (DTYPE, ROOM, INTACT)] == [[True]] * 3
    spoilt = over(message("isend", 1, 1, fingerprint=7), message("recv", 0, 1, fingerprint=8))
    assert fate(spoilt, WHOLE, INTACT) == [False]
    odd = over(message("send", 1, 1, "float32[9]"), message("recv", 0, 1, "int64[4]"))
    assert fate(odd, WHOLE, DTYPE) == fate(odd, WHOLE, ROOM) == [False]
    boxes = over(message("send", 1, 1, "float32[2]"), message("recv", 0, 1, "float32[8]"))
    assert fate(boxes, WHOLE, ROOM) == [True], "a box may be larger than what it holds"
    assert fate(over(message("send", 1, 1), message("recv", 0, 1, tag=5)), WHOLE, DTYPE) == []


def test_both_ends_of_a_message_may_be_in_different_steps() -> None:
    relation = APIArg()
    assert over("", message("recv", 0, 1, fingerprint=3), relation=relation) == []
    assert fate(over(message("send", 1, 1, fingerprint=3), "", relation=relation), WHOLE, INTACT) == [True]


def test_what_was_only_started_has_been_received_when_it_was_waited_for() -> None:
    wait = (
        '  lifecycle torch.distributed.Work.wait result={"started":0}\n    tensor received float32[4] fingerprint=9\n'
    )
    receives = message("irecv", 0, 1, fingerprint=1)
    assert fate(over(message("isend", 1, 1, fingerprint=9), receives + wait), WHOLE, INTACT) == [True]
    assert fate(over(message("isend", 1, 1, fingerprint=9), receives), WHOLE, INTACT) == []


def test_what_two_ranks_send_each_other_has_the_same_shape() -> None:
    one = message("isend", 1, 1, "float32[4,8]") + message("irecv", 1, 1, "float32[64]")
    for shape, so in (("4,8", True), ("5,8", False)):
        found = over(one, message("isend", 0, 1, f"float32[{shape}]") + message("irecv", 0, 1, "float32[64]"))
        assert fate(found, WHOLE, EVEN) == [so]
    assert fate(over(one, message("irecv", 0, 1, "float32[64]")), WHOLE, EVEN) == []


def test_different_numbers_of_messages_are_different_things() -> None:
    """Two tensors go forward to the next stage, and one gradient comes back."""
    forward = message("isend", 1, 1, "float32[4,8]") + message("isend", 1, 2, "float32[4]")
    assert fate(over(forward, message("isend", 0, 1, "float32[5,8]")), WHOLE, EVEN) == []


def test_functions_that_only_some_ranks_have_say_nothing_of_the_purpose() -> None:
    first, last = (collective("broadcast", purpose=f"{name}.run()") for name in ("First", "Last"))
    assert fate(over(first, last), WHOLE, SAME_PURPOSE) == [True]


def test_a_whole_number_that_all_ranks_compute_is_the_same() -> None:
    def capacity(value: object) -> str:
        return f'  project gating.capacity_of result={{"value":{value}}}\n'

    subject = Subject("gating.capacity_of", "ranks")
    for other, told in ((8, [True]), (9, [False]), ("0.5", []), ("true", [])):
        assert fate(over(capacity(8), capacity(other)), subject, SAME_NUMBER) == told
    assert "the same value of the result" in APIArg.describe(subject, SAME_NUMBER)


def differing(found: list[Occasion], prop: Property) -> tuple[tuple[int, ...], int, str]:
    """Of the first occasion on which a property failed: the ranks that differ, of how many, and the words for it."""
    one = next(one for one in found if prop in (one.failed or ()))
    return *one.apart, one.note


def test_the_rank_whose_collectives_differ_is_told() -> None:
    reduce, gather = collective("all_reduce", ranks="0-2"), collective("all_gather", ranks="0-2")
    orders = (reduce + gather, gather + reduce, reduce + gather, "")
    told = "rank 1 differs from ranks 0, 2 in the order of its collectives"
    assert differing(over(*orders), IN_ORDER) == ((1,), 3, told)
    told = "rank 2 differs from ranks 0, 1 in how often all_reduce is called"
    assert differing(over(reduce, reduce, reduce + reduce), AS_OFTEN) == ((2,), 3, told)
    purposes = [collective("all_reduce", purpose=f"norm_of(group={name})") for name in "aba"]
    assert differing(over(*purposes), SAME_PURPOSE)[:2] == ((1,), 3)


def test_the_ranks_that_get_other_values_are_told_for_each_of_them() -> None:
    def scaled(by: int, size: int) -> str:
        return f'  project train.scale args={{"by":{by},"size":{size}}}\n'

    found = over(scaled(2, 8), scaled(2, 9), scaled(3, 8), scaled(2, 8))
    by, size = (Property("arguments", f"value of {name}", "all equal") for name in ("by", "size"))
    assert differing(found, by) == ((2,), 4, "rank 2 differs from ranks 0, 1, 3 in the value of by")
    assert differing(found, size) == ((1,), 4, "rank 1 differs from ranks 0, 2, 3 in the value of size")
    distinct = Property("arguments", "value of by", "all distinct")
    assert differing(found, distinct) == ((0, 1, 3), 4, "ranks 0, 1, 3 had the same value of by")


def test_of_a_message_both_ends_are_told() -> None:
    def end(name: str, peer: int, size: int) -> str:
        facts = f'{{"peer":{peer},"number":0}}'
        return f"  lifecycle torch.distributed.{name} result={facts}\n    tensor tensor float32[{size}]\n"

    found = over("", end("send", 2, 8), end("recv", 1, 4))
    assert differing(found, ROOM) == ((1, 2), 2, "not so between ranks 1, 2")


def test_parts_that_a_collective_deals_out_are_not_compared() -> None:
    def scattered(name: str, before: str, after: str) -> str:
        given = f"    tensor tensor float32[4] fingerprint={before}\n"
        return f"  lifecycle torch.distributed.{name}\n{given}    tensor result float32[4] fingerprint={after}\n"

    for name, compared in (("scatter", False), ("broadcast", True)):
        found = over(scattered(name, "1", "3"), scattered(name, "2", "4"))
        props = {prop.object for one in found for prop in (*one.held, *(one.failed or ()))}
        assert ("data of tensor" in props, "data of result" in props) == (compared, compared)
        assert "shape of tensor" in props
