"""The journal: candidates found by what people call them, and read back as they were written."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincheck.errors import JournalUnreadable, OutputError
from traincheck.inference.candidate_trace import trace_in_journal
from traincheck.inference.journal import DROPPED, KEPT, Entry, Journal, is_journal, words

SENTENCES = (
    "in a call of Optimizer.zero_grad, the parameter grad is cleared",
    "in a call of Optimizer.zero_grad, some parameter grad changes",
    "in a call of Optimizer.step, some parameter data changes",
    "in a call of Optimizer.step, the parameter grad does not change",
    "between two calls of Optimizer.step, Optimizer.zero_grad is called",
    "between two calls of Optimizer.step, GradScaler.unscale_ comes before clip_grad_norm_",
    "a call of Module.forward with training=True calls dropout",
)


def entry(sentence: str, outcome: str = DROPPED, relation: str = "EventContain", **others: str) -> Entry:
    fields = {"precondition": "always", "reason": "it never held", "id": "", **others}
    return Entry(relation, sentence, fields["precondition"], outcome, fields["reason"], 3, 40, 10, 0, fields["id"])


@pytest.fixture
def journal() -> Journal:
    return Journal(map(entry, SENTENCES))


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("zero_grad resets gradients", 0),
        ("resetting of the gradient by zero_grad", 0),
        ("optimizer.zero_grad() clears grads", 0),
        ("step updates the parameters' data", 2),
        ("optimizer step changes weights", 2),
        ("zero_grad between steps", 4),
        ("grad scaler unscales before clipping", 5),
        ("GradScaler.unscale_", 5),
        ("dropout in training", 6),
    ],
)
def test_a_candidate_is_found_by_its_common_name(text: str, index: int, journal: Journal) -> None:
    assert journal.find(text)[0].sentence == SENTENCES[index]


def test_dissimilar_candidates_are_not_found(journal: Journal) -> None:
    assert journal.find("learning rate of the scheduler warms up") == []
    assert journal.find("") == [] and journal.find("the of it") == []
    assert Journal().find("anything") == []


def test_kept_candidates_come_first_among_equals() -> None:
    same = SENTENCES[0]
    journal_of_three = Journal([entry(same), entry(same, KEPT), entry(SENTENCES[2], KEPT)])
    assert [candidate.outcome for candidate in journal_of_three.find("zero_grad clears", most=2)] == [KEPT, DROPPED]


def test_an_id_finds_its_candidate(journal: Journal) -> None:
    for name in ("ab12cd34ef", "9238e894ad", "0123456789"):
        longer = Journal([*journal.entries, entry(SENTENCES[3], id=name)])
        assert [candidate.id for candidate in longer.find(name)] == [name]


def test_word_forms_match() -> None:
    for forms in ("clear clears cleared clearing resets", "change changes changed changing updates", "stop stopping"):
        assert len(words(forms)) == 1, forms
    assert words("torch.nn.functional.crossEntropy2") == {"torch", "nn", "functional", "cros", "entropy", "2"}


def test_a_round_trip_preserves_everything(journal: Journal, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.jsonl"
    journal.write(path)
    assert Journal.read(path).entries == journal.entries
    assert is_journal(path) and path.read_bytes().count(b"\n") == len(SENTENCES) + 1
    Journal().write(path)
    assert Journal.read(path).entries == [] and is_journal(path)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello\n",
        b'{"kind":"traincheck book","format":1}\n',
        b'{"kind":"traincheck journal","format":99}\n',
        b'{"kind":"traincheck journal","format":1}\n{"relation":"EventContain"}\n',
        b'{"kind":"traincheck journal","format":1}\n{"relation":"Ev',
    ],
)
def test_a_file_without_a_journal_is_reported(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(JournalUnreadable, match="as a journal") as raised:
        Journal.read(path)
    assert str(path) in str(raised.value)


def test_unreadable_and_unwritable_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(JournalUnreadable, match="No such file"):
        Journal.read(tmp_path / "absent")
    with pytest.raises(JournalUnreadable):
        is_journal(tmp_path / "absent")
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError):
        Journal().write(tmp_path / "file" / "journal")


def test_a_chain_of_implications_is_followed_to_its_end() -> None:
    chain = Journal(
        [
            entry("a", KEPT, id="aaaaaaaaaa", reason="confidence 0.8"),
            entry("b", id="bbbbbbbbbb", reason="implied by aaaaaaaaaa: the same holds of a more general class"),
            entry("clears", id="cccccccccc", reason="implied by bbbbbbbbbb: the same holds of a more general class"),
            entry("turns", id="dddddddddd", reason="implied by eeeeeeeeee: x"),
            entry("round", id="eeeeeeeeee", reason="implied by dddddddddd: x"),
        ]
    )
    (clears,) = trace_in_journal("clears", chain)
    assert clears.by is chain.entries[0]
    (turns,) = trace_in_journal("turns", chain)
    assert turns.by is None
