"""Rules about collectives, and about messages between two ranks."""

from __future__ import annotations

from traincheck.relations.api_arg.messages import DTYPE, EVEN, INTACT, ROOM
from traincheck.relations.api_arg.rank_calls import AS_OFTEN, IN_ORDER, SAME_NUMBER, SAME_PURPOSE
from traincheck.relations.api_arg.relation import APIArg
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import COMPARES_CALLS, EQUAL

WHOLE = Subject("torch.distributed", "ranks")
REDUCE = Subject("torch.distributed.all_reduce", "ranks")


def over(*ranks: str, relation: APIArg | None = None) -> list[Occasion]:
    windows = [from_text(f"window train step=1 rank={rank}\n{body}")[0] for rank, body in enumerate(ranks)]
    return list((relation or APIArg()).across(windows))


def verdicts(occasions: list[Occasion], subject: Subject, prop: Property) -> list[bool]:
    matching = [occasion for occasion in occasions if occasion.subject == subject]
    return [prop in occasion.held for occasion in matching if prop in occasion.held or prop in (occasion.failed or ())]


def collective(name: str, **more: str) -> str:
    facts = ",".join(f'"{key}":"{value}"' for key, value in more.items())
    return f"  lifecycle torch.distributed.{name} result={{{facts}}}\n"


def test_collectives_are_compared_within_their_group() -> None:
    """Ranks 0 and 2 reduce among themselves, ranks 1 and 3 gather."""
    evens, odds = collective("all_reduce", ranks="0+2"), collective("all_gather", ranks="1+3")
    occasions = over(evens, odds, evens, odds)
    assert verdicts(occasions, WHOLE, IN_ORDER) == [True, True]
    assert verdicts(over(evens, odds, "", odds), REDUCE, AS_OFTEN) == [False]
    assert verdicts(over(evens + evens, odds, evens, odds), WHOLE, IN_ORDER) == [False, True]
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
        occasions = over(of_rank(name, 1, 3), of_rank(name, 2, 4))
        assert verdicts(occasions, subject, Property(COMPARES_CALLS, "data of tensor", EQUAL)) == judged
        assert verdicts(occasions, subject, Property(COMPARES_CALLS, "data of result", EQUAL)) == judged
        occasions = over(of_rank(name, 1, 3), of_rank(name, 2, 4, "float64"))
        assert verdicts(occasions, subject, Property(COMPARES_CALLS, "dtype of tensor", EQUAL)) == [False]


def test_ranks_meet_in_a_collective_for_the_same_purpose() -> None:
    dense, embedding, experts = (collective("all_reduce", purpose=f"norm_of(group={name})") for name in "abc")
    assert verdicts(over(dense + experts, dense + experts), WHOLE, SAME_PURPOSE) == [True]
    (failed,) = [
        occasion for occasion in over(dense + embedding, dense + experts) if SAME_PURPOSE in (occasion.failed or ())
    ]
    assert failed.seq == 2, "the second call of the first rank"
    assert verdicts(over(dense + dense, dense), WHOLE, SAME_PURPOSE) == [], "nobody knows which one is missing"


def test_integers_are_compared_by_words_of_the_function_name() -> None:
    def returned(name: str, value: int) -> str:
        return f'  project {name} result={{"value":{value}}}\n'

    for name in ("moe.get_capacity", "moe.Gate.expertCapacity", "gating.capacity_of"):
        for other, holds in ((3, True), (4, False)):
            occasions = over(returned(name, 3), returned(name, other))
            for api in (name, "functions named capacity"):
                assert verdicts(occasions, Subject(api, "ranks"), SAME_NUMBER) == [holds]
            assert verdicts(occasions, Subject("functions named get", "ranks"), SAME_NUMBER) == []


def test_exchanges_record_whether_sizes_are_given() -> None:
    def exchange(sizes: str, splits: str) -> str:
        return f"  lifecycle torch.distributed.all_to_all_single args={{{splits}}}\n    tensor input float32[{sizes}]\n"

    known_splits = '"len(input_split_sizes)":2,"len(output_split_sizes)":2'
    for splits, splits_known in ((known_splits, True), ("", False)):
        occasions = [
            occasion
            for occasion in over(exchange("4,2", splits), exchange("3,2", splits))
            if "all_to_all" in occasion.subject.api
        ]
        assert {value_of(occasion.context, "splits") for occasion in occasions if "shape" in str(occasion.failed)} == {
            splits_known
        }


def message(way: str, peer: int, number: int, tensor: str = "float32[4]", fingerprint: int = 0, tag: int = 0) -> str:
    role = "tensor" if way != "recv" else "result"
    value = f" fingerprint={fingerprint}" if fingerprint else ""
    result = f'"peer":{peer},"number":{number}'
    head = f'  lifecycle torch.distributed.{way} args={{"tag":{tag}}} result={{{result}}}\n'
    return head + f"    tensor {role} {tensor}{value}\n"


def test_a_message_is_paired_with_the_one_that_is_received() -> None:
    good = over(message("send", 1, 1, fingerprint=7), message("recv", 0, 1, fingerprint=7))
    assert [verdicts(good, WHOLE, prop) for prop in (DTYPE, ROOM, INTACT)] == [[True]] * 3
    spoilt = over(message("isend", 1, 1, fingerprint=7), message("recv", 0, 1, fingerprint=8))
    assert verdicts(spoilt, WHOLE, INTACT) == [False]
    odd = over(message("send", 1, 1, "float32[9]"), message("recv", 0, 1, "int64[4]"))
    assert verdicts(odd, WHOLE, DTYPE) == verdicts(odd, WHOLE, ROOM) == [False]
    boxes = over(message("send", 1, 1, "float32[2]"), message("recv", 0, 1, "float32[8]"))
    assert verdicts(boxes, WHOLE, ROOM) == [True], "a box may be larger than what it holds"
    assert verdicts(over(message("send", 1, 1), message("recv", 0, 1, tag=5)), WHOLE, DTYPE) == []


def test_both_ends_of_a_message_may_be_in_different_steps() -> None:
    relation = APIArg()
    assert over("", message("recv", 0, 1, fingerprint=3), relation=relation) == []
    assert verdicts(over(message("send", 1, 1, fingerprint=3), "", relation=relation), WHOLE, INTACT) == [True]


def test_asynchronous_messages_are_received_at_wait() -> None:
    wait = (
        '  lifecycle torch.distributed.Work.wait result={"started":0}\n    tensor received float32[4] fingerprint=9\n'
    )
    receives = message("irecv", 0, 1, fingerprint=1)
    assert verdicts(over(message("isend", 1, 1, fingerprint=9), receives + wait), WHOLE, INTACT) == [True]
    assert verdicts(over(message("isend", 1, 1, fingerprint=9), receives), WHOLE, INTACT) == []


def test_exchanged_tensors_have_the_same_shape() -> None:
    first = message("isend", 1, 1, "float32[4,8]") + message("irecv", 1, 1, "float32[64]")
    for shape, holds in (("4,8", True), ("5,8", False)):
        occasions = over(first, message("isend", 0, 1, f"float32[{shape}]") + message("irecv", 0, 1, "float32[64]"))
        assert verdicts(occasions, WHOLE, EVEN) == [holds]
    assert verdicts(over(first, message("irecv", 0, 1, "float32[64]")), WHOLE, EVEN) == []


def test_different_message_counts_are_compared_separately() -> None:
    """Two tensors go forward to the next stage, and one gradient comes back."""
    forward = message("isend", 1, 1, "float32[4,8]") + message("isend", 1, 2, "float32[4]")
    assert verdicts(over(forward, message("isend", 0, 1, "float32[5,8]")), WHOLE, EVEN) == []


def test_functions_of_some_ranks_only_are_not_compared() -> None:
    first, last = (collective("broadcast", purpose=f"{name}.run()") for name in ("First", "Last"))
    assert verdicts(over(first, last), WHOLE, SAME_PURPOSE) == [True]


def test_a_whole_number_that_all_ranks_compute_is_the_same() -> None:
    def capacity(value: object) -> str:
        return f'  project gating.capacity_of result={{"value":{value}}}\n'

    subject = Subject("gating.capacity_of", "ranks")
    for other, expected in ((8, [True]), (9, [False]), ("0.5", []), ("true", [])):
        assert verdicts(over(capacity(8), capacity(other)), subject, SAME_NUMBER) == expected
    assert "the same value of the result" in APIArg.describe(subject, SAME_NUMBER)


def differing(occasions: list[Occasion], prop: Property) -> tuple[tuple[int, ...], int, str]:
    """Return for the first violation the differing ranks, the number of ranks, and the note."""
    occasion = next(occasion for occasion in occasions if prop in (occasion.failed or ()))
    return *occasion.differing, occasion.note


def test_the_rank_with_other_collectives_is_named() -> None:
    reduce, gather = collective("all_reduce", ranks="0-2"), collective("all_gather", ranks="0-2")
    orders = (reduce + gather, gather + reduce, reduce + gather, "")
    note = "rank 1 differs from ranks 0, 2 in the order of its collectives"
    assert differing(over(*orders), IN_ORDER) == ((1,), 3, note)
    note = "rank 2 differs from ranks 0, 1 in how often all_reduce is called"
    assert differing(over(reduce, reduce, reduce + reduce), AS_OFTEN) == ((2,), 3, note)
    purposes = [collective("all_reduce", purpose=f"norm_of(group={name})") for name in "aba"]
    assert differing(over(*purposes), SAME_PURPOSE)[:2] == ((1,), 3)


def test_ranks_with_other_values_are_named_for_each_message() -> None:
    def scaled(by: int, size: int) -> str:
        return f'  project train.scale args={{"by":{by},"size":{size}}}\n'

    occasions = over(scaled(2, 8), scaled(2, 9), scaled(3, 8), scaled(2, 8))
    by, size = (Property("arguments", f"value of {name}", "all equal") for name in ("by", "size"))
    assert differing(occasions, by) == ((2,), 4, "rank 2 differs from ranks 0, 1, 3 in the value of by")
    assert differing(occasions, size) == ((1,), 4, "rank 1 differs from ranks 0, 2, 3 in the value of size")
    distinct = Property("arguments", "value of by", "all distinct")
    assert differing(occasions, distinct) == ((0, 1, 3), 4, "ranks 0, 1, 3 had the same value of by")


def test_both_ends_of_a_message_are_named() -> None:
    def end(name: str, peer: int, size: int) -> str:
        facts = f'{{"peer":{peer},"number":0}}'
        return f"  lifecycle torch.distributed.{name} result={facts}\n    tensor tensor float32[{size}]\n"

    occasions = over("", end("send", 2, 8), end("recv", 1, 4))
    assert differing(occasions, ROOM) == ((1, 2), 2, "not so between ranks 1, 2")


def test_parts_that_a_collective_deals_out_are_not_compared() -> None:
    def scattered(name: str, before: str, after: str) -> str:
        given = f"    tensor tensor float32[4] fingerprint={before}\n"
        return f"  lifecycle torch.distributed.{name}\n{given}    tensor result float32[4] fingerprint={after}\n"

    for name, compared in (("scatter", False), ("broadcast", True)):
        occasions = over(scattered(name, "1", "3"), scattered(name, "2", "4"))
        props = {prop.object for occasion in occasions for prop in (*occasion.held, *(occasion.failed or ()))}
        assert ("data of tensor" in props, "data of result" in props) == (compared, compared)
        assert "shape of tensor" in props
