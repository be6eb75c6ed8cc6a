"""Program identity: what a program is by its source text, and how far edits and other programs are from it."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincheck.redaction import everything
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.launching.program_identity import entry_of, identity_of
from traincheck.vocab.program import SAME, SKETCH_SIZE, UNKNOWN, ProgramIdentity, jaccard, sketch

EXAMPLES = Path(__file__).parents[2] / "examples"

WORDS = st.sets(st.text(max_size=6), max_size=60)


@given(WORDS, WORDS)
def test_the_similarity_of_small_sets_is_their_jaccard_index(first: set[str], second: set[str]) -> None:
    expected = len(first & second) / len(first | second) if first | second else 1.0
    assert jaccard(sketch(first), sketch(second)) == pytest.approx(expected)
    assert jaccard(sketch(first), sketch(second)) == jaccard(sketch(second), sketch(first))


def test_the_similarity_of_large_sets_is_estimated() -> None:
    first, second = {f"a{number}" for number in range(3000)}, {f"a{number}" for number in range(1000, 4000)}
    assert len(sketch(first)) == 8 * SKETCH_SIZE
    assert jaccard(sketch(first), sketch(second)) == pytest.approx(0.5, abs=4 * 0.044)


@given(st.text("abc:._-m 0", max_size=12), WORDS, WORDS)
def test_an_identity_is_read_as_it_was_written(main: str, entry: set[str], modules: set[str]) -> None:
    identity = ProgramIdentity.of_features(main, entry, modules)
    parsed = ProgramIdentity.parse(str(identity))
    assert parsed == identity or not (identity.main or identity.entry)
    assert everything(str(identity)) == str(identity) or main  # a sketch is never taken for a secret


@pytest.mark.parametrize("text", ["", "train", "a:b:c", "main:0123456:", "main:0123456g:", f"main:{'0' * 8 * 200}:"])
def test_an_empty_identity_matches_nothing(text: str) -> None:
    assert ProgramIdentity.parse(text) == UNKNOWN
    assert ProgramIdentity.parse(text).same_as(UNKNOWN) is None


def written(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def of(script: Path, *before: str) -> ProgramIdentity:
    return identity_of(Target.parse((*before, str(script))), script.parent)


def test_examples_differ_and_their_edits_match(tmp_path: Path) -> None:
    """The measured distance: different examples have a third of the threshold in common, edits far more than it."""
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert len(scripts) > 20
    identities = {script: of(script) for script in scripts}
    for first, second in itertools.combinations(scripts, 2):
        assert identities[first].similarity(identities[second]) < SAME / 2, (first, second)
    for script in scripts:
        text = script.read_text()
        edited = re.sub(r"\b\d+\b", "3", text).replace("optimizer.zero_grad()", "pass") + "\nprint('done')\n"
        try:
            compile(edited, "edited", "exec")
        except SyntaxError:
            continue  # a number inside a text that is parsed
        assert of(written(tmp_path / script.stem, other=edited) / "other.py").similarity(identities[script]) > 0.9, (
            script
        )


MODEL = "from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        self.a = nn.Linear(2, 2)\n"
TRAIN = """
from model import Net

def train(net, data):
    for x in data:
        net(x).sum().backward()

train(Net(), [])
"""
PROBE = """
import sys
from model import Net

class Probe:
    def run(self, path):
        self.net = Net()

Probe().run(sys.argv)
"""


def test_scripts_that_share_a_model_are_different_programs(tmp_path: Path) -> None:
    home = written(tmp_path / "project", model=MODEL, train=TRAIN, probe=PROBE)
    assert of(home / "train.py").same_as(of(home / "probe.py")) is False
    moved = written(tmp_path / "elsewhere", model=MODEL, renamed=TRAIN)
    assert of(home / "train.py").same_as(of(moved / "renamed.py")) is True


def test_equal_thin_scripts_with_other_modules_are_different_programs(tmp_path: Path) -> None:
    other = "import numpy\nclass Tree:\n    def fit(self, rows):\n        self.root = numpy.sort(rows)\nNet = Tree\n"
    first = written(tmp_path / "one", model=MODEL, train=TRAIN)
    second = written(tmp_path / "two", model=other, train=TRAIN)
    assert of(first / "train.py").same_as(of(second / "train.py")) is False


@pytest.mark.parametrize(
    "words",
    [
        ("pkg/train.py", "--lr", "1"),
        ("-m", "pkg.train"),
        ("--", sys.executable, "pkg/train.py"),
        ("--", "torchrun", "--nproc-per-node", "2", "pkg/train.py", "other.py"),
        ("--", "torchrun", "--nproc-per-node", "2", "-m", "pkg.train"),
        ("--", "accelerate", "launch", "--config_file", "c.yaml", "pkg/train.py"),
        ("--", "accelerate", "launch", "--module", "pkg.train"),
        ("-m", "torch.distributed.run", "pkg/train.py"),
        ("--", sys.executable, "-m", "torch.distributed.run", "-m", "pkg.train"),
    ],
)
def test_launchers_make_no_difference(words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "pkg", train=TRAIN.replace("from model import Net", "Net = list"))
    (tmp_path / "c.yaml").write_text("")
    (tmp_path / "other.py").write_text("")
    monkeypatch.chdir(tmp_path)
    target = Target.parse(words)
    entry = entry_of(target, tmp_path)
    assert entry is not None and entry[1] == tmp_path / "pkg" / "train.py" and entry[0] in ("train", "pkg.train")
    assert identity_of(target, tmp_path).same_as(of(tmp_path / "pkg" / "train.py")) is True


def test_names_decide_without_readable_text(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def train(:\n")
    (tmp_path / "job.sh").write_text("python train.py\n")
    assert of(tmp_path / "broken.py") == ProgramIdentity("broken")
    assert of(tmp_path / "missing.py") == ProgramIdentity("missing")
    assert identity_of(Target.parse(("--", "bash", str(tmp_path / "job.sh"))), tmp_path).entry == ""
