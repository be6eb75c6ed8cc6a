"""Packs: what a folder of them must be, which are of use to a program, and how a book is taken apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincheck.cli.main import main
from traincheck.errors import BadOption, PacksUnreadable
from traincheck.inference.pack_building import MAX_NAMED_PROGRAMS, Theme, Themes, read_themes, split_by_theme
from traincheck.invariants.book import Book, LearnedRun, read_book
from traincheck.invariants.packs import (
    ANCHOR,
    ANY,
    GENERAL,
    MANIFEST,
    SHIPPED,
    Program,
    book_of_packs,
    narrowest,
    read_packs,
)
from traincheck.version import __version__
from traincheck.vocab.invariant import ERROR, PIPELINE, Invariant

Rules = Callable[..., Invariant]


# -- what comes with TrainCheck --------------------------------------------------------------------------------------


def test_shipped_packs_are_complete_and_from_several_programs() -> None:
    packs = read_packs(SHIPPED)
    assert packs.manifest.version == __version__ and packs.manifest.made_with["torch"]
    books = {pack.name: (pack, packs.book(pack)) for pack in packs.manifest.packs}
    assert {GENERAL, "distributed", "mixed-precision", "hugging-face"} == set(books)
    assert {path.name for path in SHIPPED.iterdir()} == {MANIFEST, *(pack.file for pack, _ in books.values())}
    for pack, book in books.values():
        assert len(book.invariants) == pack.rules
        assert sum(rule.severity == ERROR for rule in book.invariants) == pack.errors
        for rule in book.invariants:
            assert rule.support.scripts >= 9, rule.sentence
            assert not rule.program and not rule.mute and set(rule.origin) <= {run.script for run in book.runs}
    whole = book_of_packs([packs])
    assert len(whole.invariants) == sum(pack.rules for pack in packs.manifest.packs)


def test_rules_of_jobs_of_ranks_are_for_these_alone() -> None:
    packs = read_packs(SHIPPED)
    alone = {pack.name for pack in packs.of_use(Program(frozenset(("torch",)), distributed=False))}
    assert GENERAL in alone and not alone & {"distributed", "hugging-face"}
    assert "hugging-face" in {
        useful.name for useful in packs.of_use(Program(frozenset(("accelerate",)), distributed=False))
    }
    assert packs.of_use(ANY) == packs.manifest.packs
    assert packs.of_use(Program(torch="2.13.0+cpu")) == packs.manifest.packs
    assert packs.of_use(Program(torch="2.3.1")) == ()


# -- a folder of packs -------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, two_programs: Path) -> Path:
    """Packs of two programs that have all in common."""
    packs_folder = tmp_path / "packs"
    assert main(["packs", "build", str(two_programs / "a"), str(two_programs / "b"), "-o", str(packs_folder)]) == 0
    return packs_folder


@pytest.fixture
def two_programs(tmp_path: Path) -> Path:
    """Recordings of two programs."""
    from recorded_runs import training, write_run

    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name, f"{name}.py", training(12, "SGD"))
    return tmp_path / "runs"


def test_a_folder_is_built_and_shown(folder: Path, two_programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packs", "build", str(two_programs / "a"), str(two_programs / "b"), "-o", str(folder)]) == 0
    progress_text = capsys.readouterr().err
    digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    assert f"{folder}{ANCHOR}{digest}" in progress_text
    assert main(["packs", "list", "--packs", str(folder)]) == 0
    assert "general" in capsys.readouterr().out
    assert main(["packs", "list", "--packs", f"{folder}{ANCHOR}{digest}", "--json"]) == 0
    (pack_line,) = json.loads(capsys.readouterr().out)
    assert pack_line["packs"][0]["programs"] == 2 and pack_line["version"] == "1"
    assert main(["packs", "show", "general", "--packs", str(folder)]) == 0
    assert "learned from 2 programs: a.py, b.py" in capsys.readouterr().out
    assert main(["packs", "show", "speech", "--packs", str(folder)]) == 2
    assert "one of general" in capsys.readouterr().err


def test_the_same_runs_give_the_same_bytes(folder: Path, two_programs: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert main(["packs", "build", str(two_programs / "b"), str(two_programs / "a"), "-o", str(again)]) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in again.iterdir()
    }


def test_packs_are_replaced_by_packs_and_nothing_else_is(
    folder: Path, two_programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(two_programs / "a"), str(two_programs / "b"), "-o"]
    (folder / "speech.jsonl").write_bytes((folder / "general.jsonl").read_bytes())
    (folder / "notes.txt").write_text("ours")
    assert main(["packs", "build", *words, str(folder), "--release", "2"]) == 0
    assert not (folder / "speech.jsonl").exists() and (folder / "notes.txt").read_text() == "ours"
    assert read_packs(folder).manifest.version == "2"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.jsonl").write_text("years of work")
    for target in ("mine", "mine/thesis.jsonl"):
        assert main(["packs", "build", *words, str(tmp_path / target)]) == 2
        assert "[other-file]" in capsys.readouterr().err
    assert (tmp_path / "mine" / "thesis.jsonl").read_text() == "years of work"


def test_a_single_program_makes_no_pack(two_programs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packs", "build", str(two_programs / "a"), "-o", str(tmp_path / "packs")]) == 2
    assert "several programs" in capsys.readouterr().err and not (tmp_path / "packs").exists()


def test_a_file_without_a_pack_is_reported(folder: Path, tmp_path: Path) -> None:
    manifest, book = folder / MANIFEST, folder / "general.jsonl"
    good = manifest.read_bytes()

    def message(source: str | Path = folder) -> str:
        with pytest.raises(PacksUnreadable) as caught:
            book_of_packs([read_packs(source)])
        assert str(folder) in str(caught.value) or str(tmp_path) in str(caught.value)
        return str(caught.value)

    assert "there is no packs.json" in message(tmp_path / "absent")
    assert "other packs" in message(f"{folder}{ANCHOR}{'0' * 64}")
    for change, expected in (
        ({"kind": "a diary"}, "does not say"),
        ({"format": 9, "more": 1}, "format 9"),
        ({"packs": [{}]}, "packs[0]"),
        ({"unheard": 1}, "unheard"),
    ):
        manifest.write_text(json.dumps({**json.loads(good), **change}))
        assert expected in message()
    entry = json.loads(good)["packs"][0]
    for bad in ({"file": "../../secrets.jsonl"}, {"sha256": "none"}, {"ranks": 0}):
        manifest.write_text(json.dumps({**json.loads(good), "packs": [{**entry, **bad}]}))
        assert "packs[0]" in message()
    manifest.write_text("{" * 100_000)
    assert MANIFEST in message()
    manifest.write_bytes(good)
    book.write_bytes(book.read_bytes().replace(b'"error"', b'"notice"').replace(b'"notice"', b'"error"', 1))
    assert "not the file that was packed" in message()
    book.unlink()
    assert "there is no general.jsonl" in message()


# -- which packs are asked for -----------------------------------------------------------------------------------------


def test_packs_are_used_where_no_book_is_named(
    folder: Path,
    two_programs: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = str(two_programs / "a")
    monkeypatch.chdir(tmp_path)

    def output_of(*words: str) -> str:
        capsys.readouterr()
        assert main(["check", run, *words]) == 0
        return capsys.readouterr().err

    assert "packs traincheck" in output_of()
    book = str(folder / "general.jsonl")
    assert "of the packs" not in output_of("--book", book)
    assert "packs packs 1: general" in output_of("--packs", str(folder))
    both = output_of("--packs", str(folder), "--packs", "shipped", "-b", book)
    assert "packs traincheck" in both and "packs packs 1" in both
    monkeypatch.setenv("TRAINCHECK_PACKS", str(folder))
    assert "packs packs 1: general" in output_of()
    monkeypatch.delenv("TRAINCHECK_PACKS")
    monkeypatch.setenv("TRAINCHECK_BOOK", book)
    assert main(["packs", "list"]) == 0 and "traincheck " in capsys.readouterr().out
    monkeypatch.delenv("TRAINCHECK_BOOK")
    for words, slug in (
        (["--packs", "none"], "no-book"),
        (["--packs", "none", "--packs", "shipped"], "bad-option"),
        (["--packs", "absent"], "packs-unreadable"),
        (["--packs", "nowhere://x"], "bad-option"),
    ):
        assert main(["check", run, *words]) == 2
        assert f"[{slug}]" in capsys.readouterr().err


# -- themes ------------------------------------------------------------------------------------------------------------


NAMES = st.frozensets(st.sampled_from("abcdef"), max_size=4)


@given(st.lists(NAMES, max_size=4), st.frozensets(st.sampled_from("abcdef"), min_size=1, max_size=3))
def test_a_rule_is_of_the_narrowest_theme_that_explains_it(programs: list[frozenset[str]], origin: set[str]) -> None:
    themes = [(f"t{number}", scripts) for number, scripts in enumerate(programs)]
    theme = narrowest(themes, origin)
    fitting = [scripts for scripts in programs if origin <= scripts]
    assert (theme == GENERAL) is not bool(fitting)
    if fitting:
        assert len(dict(themes)[theme]) == min(map(len, fitting))


def test_rules_of_one_program_are_in_no_pack(new_invariant: Rules) -> None:
    runs = tuple(LearnedRun(name, "", 10) for name in ("a.py", "b.py", "torchrun c.py", "torchrun d.py"))
    common = new_invariant(origin=("a.py", "b.py"))
    ranks = new_invariant(origin=("torchrun c.py", "torchrun d.py"), sentence="of ranks", id="")
    ranks = type(ranks)(**{**_fields(ranks), "relation": "Consistent", "id": ""})
    own = type(common)(**{**_fields(common), "relation": "APIArg", "scope": PIPELINE, "id": ""})
    setting = type(common)(**{**_fields(common), "relation": "Periodic", "program": "a.py", "id": ""})
    themes = Themes(themes={"distributed": Theme(programs=("torchrun *",), ranks=2)})
    books = split_by_theme(Book((common, ranks, own, setting), runs), themes)
    assert {name: book.invariants for name, book in books.items()} == {GENERAL: (common,), "distributed": (ranks,)}
    assert [run.script for run in books["distributed"].runs] == ["torchrun c.py", "torchrun d.py"]


def test_a_rule_of_a_thousand_programs_names_some_of_them(new_invariant: Rules) -> None:
    names = tuple(f"{number:04d}.py" for number in range(1000))
    common, rare = new_invariant(origin=names), new_invariant(origin=names[:3], relation="Consistent")
    book = Book((common, rare), tuple(LearnedRun(name, "", 10) for name in names))
    general = split_by_theme(book, Themes())[GENERAL]
    packed = {rule.id: rule for rule in general.invariants}
    origin = packed[common.id].origin
    assert len(origin) == MAX_NAMED_PROGRAMS and set(origin) <= set(names)
    assert origin[0] == "0000.py" and origin[-1] > "0900.py"
    assert packed[rare.id].origin == names[:3]
    assert packed[common.id].support == common.support and len(general.runs) == 1000


def _fields(rule: Invariant) -> dict[str, object]:
    return {name: getattr(rule, name) for name in rule.__slots__}


def test_a_bad_theme_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "themes.toml"
    for text, expected in (
        (None, "can be read"),
        ("name = ", "TOML"),
        ("title = 'x'", "title"),
        ("[themes.speech]\nabout = 'x'", "programs"),
        ("[themes.general]\nprograms = ['*']", "general"),
        ('[themes."a/b"]\nprograms = ["*"]', "a/b"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(BadOption) as caught:
            read_themes(path)
        assert str(path) in str(caught.value) and expected in str(caught.value)


def test_the_themes_of_the_examples_name_programs_that_exist() -> None:
    from fnmatch import fnmatchcase

    root = Path(__file__).resolve().parents[2]
    scripts = {run.script for pack in read_packs(SHIPPED).manifest.packs for run in read_book(SHIPPED / pack.file).runs}
    for name, theme in read_themes(root / "examples" / "packs.toml").themes.items():
        for pattern in theme.programs:
            assert any(fnmatchcase(script, pattern) for script in scripts), f"{name}: {pattern}"
