"""The catalogue of diagnoses: complete entries, one answer for each violation, and entries of other packages."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from sample_rules import make_invariant
from traincheck import diagnoses, plugins
from traincheck.cli.main import main
from traincheck.diagnoses.catalogue import catalogue, diagnose, flaw, slug_of_title, topics
from traincheck.diagnoses.diagnosis import Diagnosis, Match, fits
from traincheck.diagnoses.page import page
from traincheck.errors import PluginError
from traincheck.invariants import builtin_rules
from traincheck.invariants.book import read_book
from traincheck.vocab.finding import UNEXPLAINED, Violation
from traincheck.vocab.invariant import Clause, Invariant, Precondition
from traincheck.vocab.occasion import Property, Subject

FOLDER = Path(diagnoses.__file__).parent
PACKS = FOLDER.parent / "packs"
ENTRIES = tuple(entry for group in topics().values() for entry in group)
MAX_WORDS = 28
"""Words of a sentence of the catalogue at most."""


def violation(rule: Invariant, note: str = "", evidence: tuple[str, ...] = (), stage: str = "train") -> Violation:
    return Violation(rule, 1, 0, 0, 1, stage, 1, None, "", (), note=note, evidence=evidence)


def about(verb: str, target: str = "", detail: str = "", api: str = "f", grain: str = "call") -> Violation:
    return violation(make_invariant(Property(verb, target, detail), subject=Subject(api, grain)))


# -- the entries -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.slug)
def test_an_entry_is_complete(entry: Diagnosis) -> None:
    assert flaw(entry) == ""
    assert not entry.title.endswith(".") and entry.problem.endswith((".", ")"))
    for sentence in re.split(r"(?<=[.:?])\s", " ".join((entry.problem, *entry.advice, entry.priority_reason))):
        assert len(sentence.split()) <= MAX_WORDS, sentence
    assert page(entry).startswith(f"# {entry.title}\n\n`{entry.slug}`\n")


def test_a_file_is_named_by_the_slug_of_its_entry() -> None:
    files = {path.stem.replace("_", "-") for path in FOLDER.glob("*/*.py") if path.name != "__init__.py"}
    assert files == set(catalogue()) == {entry.slug for entry in ENTRIES}
    assert all(len(list(path.glob("*.py"))) <= 25 for path in FOLDER.iterdir() if path.is_dir())


def test_titles_are_unique() -> None:
    titles = [title for entry in ENTRIES for title in {entry.title, *entry.former_titles}]
    assert len(titles) == len(set(titles))


# -- matching --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(PACKS.glob("*.jsonl")), ids=lambda path: path.stem)
def test_one_diagnosis_explains_a_rule_best(path: Path) -> None:
    """No two diagnoses are equally specific, so the answer does not depend on priorities or names."""
    for rule in (*read_book(path).invariants, *builtin_rules.of_training()):
        ranked = sorted(entry.specificity_for(violation(rule, evidence=("here f",))) for entry in ENTRIES)
        assert ranked[-1] < 0 or ranked[-1] > ranked[-2], rule.sentence


@pytest.mark.parametrize(
    ("violation", "slug"),
    [
        (about("is cleared before its next use", "parameter.grad", "is cleared"), "gradients-not-cleared"),
        (about("contains change", "parameter.data", "changes"), "optimizer-changes-nothing"),
        (about("contains change", "parameter.data", "changes", grain="parameter.data"), "parameters-never-updated"),
        (about("moves", "parameter.data", "changes", grain="step"), "model-not-updated"),
        (about("preceded by", "torch.nn.Module.forward", "training=True"), "training-in-evaluation-mode"),
        (about("preceded by", "torch.nn.Module.forward", "then f"), "calls-in-wrong-order"),
        (about("argument agrees", "dropout_p", "zero in evaluation"), "dropout-active-in-evaluation"),
        (about("argument agrees", "training"), "call-ignores-module-mode"),
        (about("same on ranks", "parameter.used_grad"), "gradients-differ-between-ranks"),
        (about("same on ranks", "buffer.used_data"), "buffers-differ-between-ranks"),
        (about("same on ranks", "hyperparameter.lr"), "ranks-diverged"),
        (about("same on ranks", "parameter.replica"), "gradients-differ-between-ranks"),
        (about("calls on ranks", "for the same purpose"), "collectives-for-different-purposes"),
        (about("calls on ranks", "as often"), "collective-calls-differ"),
        (about("leaves argument", "weight", "changed"), "parameter-skipped-at-initialization"),
        (about("reaches", "loader.length", api="loader.batches"), "run-stops-early"),
        (about("returns", "unit scale"), UNEXPLAINED),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_violation_gets_its_diagnosis(violation: Violation, slug: str) -> None:
    assert diagnose(violation).slug == slug


def test_unexplained_rules_use_their_own_text() -> None:
    rule = make_invariant(Property("returns", "unit scale"), sentence="f returns unit scale")
    entry = diagnose(violation(rule))
    assert "does not behave as in good runs" in entry.title and "f returns unit scale" in entry.problem


def test_a_setting_is_matched_by_no_diagnosis_but_its_own() -> None:
    rule = make_invariant(Property("stays", "hyperparameter.lr"))
    assert diagnose(violation(rule)).slug == "state-changed-between-steps"
    assert diagnose(violation(replace(rule, program="train.py"))).slug == "setting-changed"


def test_a_loss_that_is_multiplied_in_single_precision_needs_no_scaler() -> None:
    rule = make_invariant(Property("argument is scaled", "loss"))
    half = replace(rule, precondition=Precondition((Clause("half", True),)))
    single = replace(rule, experience=Precondition((Clause("half", False),)))
    slug = "float16-without-loss-scaling"
    assert [diagnose(violation(each)).slug == slug for each in (rule, half, single)] == [True, True, False]


@pytest.mark.parametrize(
    ("match", "accepted"),
    [
        (Match(verb="returns"), True),
        (Match(verb=("stays", "returns")), True),
        (Match(verb="return"), False),
        (Match(object="*scale", grain="call"), True),
        (Match(object="*scale", grain="step"), False),
        (Match(stage="eval"), True),
        (Match(stage="train"), False),
        (Match(note="*7"), True),
        (Match(evidence="held*"), True),
        (Match(evidence="*7"), False),
        (Match(test=lambda violation: violation.step == 2), False),
        (Match(setting=True), False),
    ],
)
def test_a_match_needs_all_of_its_fields(match: Match, accepted: bool) -> None:
    rule = make_invariant(Property("returns", "unit scale"), subject=Subject("f"))
    assert match.accepts(violation(rule, "it was 7", ("x", "held by this optimizer"), "eval")) is accepted


def test_patterns_match_the_whole_text() -> None:
    assert fits("", "anything") and fits("a.*", "a.b\nc") and fits("*[0]", "x[0]")
    assert not fits("a.", "ab") and not fits("*.b", "a.b.c")


def test_former_titles_lead_to_the_diagnosis() -> None:
    assert slug_of_title("Parameters of the model are not updated") == "model-not-updated"
    assert slug_of_title("Model parameters are not updated") == "model-not-updated"
    assert slug_of_title("relu does not behave as in good runs") == UNEXPLAINED
    assert slug_of_title("The loss is printed no more") == ""


# -- entries of other packages ---------------------------------------------------------------------------------------

OWN = Diagnosis(
    slug="feature-store-stale",
    title="The feature store is stale",
    problem="Features are older than labels.",
    advice=("Rebuild the features.",),
    explains=(Match(verb="returns", object="unit scale", api="features.load"),),
    priority=1,
    priority_reason="Everything depends on features.",
    example="features.load('yesterday')",
)


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Return the diagnoses of an installed package, by slug."""
    entries: dict[str, object] = {}
    module = ModuleType("diagnoses_of_a_team")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(module, "__getattr__", lambda name: entries[name], raising=False)
    monkeypatch.setattr(plugins, "added", lambda group: tuple((name, f"{module.__name__}:{name}") for name in entries))
    catalogue.cache_clear()
    yield entries
    catalogue.cache_clear()


def test_an_entry_of_a_package_explains_more_precisely(
    added: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    added[OWN.slug] = OWN
    assert diagnose(about("returns", "unit scale", api="features.load")) is OWN
    assert diagnose(about("returns", "unit scale")).slug == UNEXPLAINED
    assert main(["explain", OWN.slug]) == 0
    assert "Rebuild the features." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "entry", "complaint"),
    [
        ("gradients-not-cleared", replace(OWN, slug="gradients-not-cleared"), "choose another one"),
        ("feature-store-stale", "a text", "it is a str"),
        ("feature-store-stale", replace(OWN, slug="other-slug"), "needs the same name"),
        ("FeatureStore", replace(OWN, slug="FeatureStore"), "lower-case words joined by hyphens"),
        ("feature-store-stale", replace(OWN, title=" "), "its title must not be empty"),
        ("feature-store-stale", replace(OWN, advice=()), "its advice must be"),
        ("feature-store-stale", replace(OWN, explains=()), "it explains nothing"),
        ("feature-store-stale", replace(OWN, explains=(Match(),)), "at least one field"),
        ("feature-store-stale", replace(OWN, priority=0), "its priority must be"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused(
    added: dict[str, object], name: str, entry: object, complaint: str
) -> None:
    added[name] = entry
    with pytest.raises(PluginError, match=complaint):
        catalogue()


# -- the command -----------------------------------------------------------------------------------------------------


def test_explain_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "[gradients-not-cleared]"]) == 0
    assert capsys.readouterr().out.strip() == page(catalogue()["gradients-not-cleared"]).strip()
    assert main(["explain", "gradients-not-cleared", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Gradients are not cleared between steps"


def test_explain_names_similar_diagnoses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "gradient-not-cleared"]) == 2
    assert "such as gradients-not-cleared" in capsys.readouterr().err
