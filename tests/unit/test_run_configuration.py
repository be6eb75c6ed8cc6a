"""What a run records of its configuration, and in what two runs differ."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from traincheck.comparison.configuration import (
    ARGUMENTS,
    ENVIRONMENT,
    PACKAGES,
    RANKS,
    SETTINGS,
    SOFTWARE,
    SOURCE,
    SWITCH,
    configuration_differences,
)
from traincheck.comparison.report import difference_text
from traincheck.runtime.launching.code_version import commit_of
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.launching.program_identity import digests_of
from traincheck.sources.recording.run_configuration import read_configuration
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.vocab.run_configuration import RunConfiguration

# -- the configuration of a process ------------------------------------------------------------------------------------


def test_global_settings_of_torch_are_read() -> None:
    before = read_configuration().settings
    assert before["device"] == ("cpu" if not torch.cuda.is_initialized() else torch.cuda.get_device_name())
    threads = torch.get_num_threads()
    torch.set_default_dtype(torch.float64)
    torch.backends.cudnn.deterministic = True
    torch.set_num_threads(threads + 1)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        after = read_configuration().settings
    finally:
        torch.set_default_dtype(torch.float32)
        torch.backends.cudnn.deterministic = False
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = False
    changed = {name: value for name, value in after.items() if before[name] != value}
    assert changed == {
        "threads": str(threads + 1),
        "default dtype": "float64",
        "precision of matmul on CUDA": "tf32",
        "cudnn.deterministic": "True",
    }


@pytest.mark.filterwarnings("error")
def test_versions_are_read_without_executing_code_of_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} was loaded")

    known = ModuleType("known_package")
    known.__dict__["__version__"] = "1.2.3"
    monkeypatch.setitem(sys.modules, "known_package", known)
    monkeypatch.setitem(sys.modules, "lazy_package", Lazy("lazy_package"))
    packages = read_configuration().packages
    assert packages["known_package"] == "1.2.3" and packages["torch"] == torch.__version__
    assert not {"lazy_package", "traincheck", "json"} & set(packages)


def test_only_variables_of_numerical_libraries_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    monkeypatch.setenv("TORCH_HOME", "cache/torch")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrstuv")
    environment = read_configuration().environment
    assert environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not {"TORCH_HOME", "HF_TOKEN", "PATH"} & set(environment)


# -- the version of the code -------------------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.email=someone@example.org", "-c", "user.name=someone")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_the_commit_is_that_of_git(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "inner").mkdir(parents=True)
    git(project, "init", "-q")
    assert commit_of(project) == ""  # without a commit
    (project / "train.py").write_text("print(1)\n")
    git(project, "add", ".")
    git(project, "commit", "-qm", "first")
    head = git(project, "rev-parse", "HEAD").strip()
    assert commit_of(project / "inner") == head
    git(project, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    git(tmp_path / "tree", "commit", "-q", "--allow-empty", "-m", "second")
    assert commit_of(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD").strip() != head
    git(project, "pack-refs", "--all")
    assert commit_of(project) == head
    git(project, "checkout", "-q", "--detach")
    assert commit_of(project) == head


def test_a_damaged_repository_has_no_commit(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("a secret\n")
    assert commit_of(tmp_path) == ""
    (tmp_path / ".git" / "HEAD").write_text("ref: refs/heads/none\n")
    assert commit_of(tmp_path) == ""


def test_digests_cover_the_files_that_the_program_imports(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import model\nimport json\n")
    (tmp_path / "model.py").write_text("WIDTH = 1\n")
    (tmp_path / "unrelated.py").write_text("")
    digests = digests_of(Target("script", (str(tmp_path / "train.py"),)), tmp_path)
    assert set(digests) == {"train.py", "model.py"} and all(len(digest) == 64 for digest in digests.values())


# -- two runs ----------------------------------------------------------------------------------------------------------

CONFIGURATION = RunConfiguration(
    settings={"threads": "1", "only here": "x"}, packages={"numpy": "2.0", "torch": "2.4.0"}, environment={}
)


def recorded(path: Path, manifest: Manifest, *notes: ProcessNote) -> Path:
    folder = RunFolder.create(path, manifest)
    for note in notes:
        folder.write_note(note)
    return path


def note(torch: str = "2.4.0", ranks: int = 1, configuration: RunConfiguration | None = CONFIGURATION) -> ProcessNote:
    return ProcessNote(torch=torch, python="3.12.1", world_size=ranks, steps=3, configuration=configuration)


def differences(a: Path, b: Path) -> list[tuple[str, str, str | None, str | None]]:
    return [(each.kind, each.name, each.a, each.b) for each in configuration_differences(a, b)]


def test_equal_configurations_have_no_difference(tmp_path: Path) -> None:
    manifest = Manifest(
        argv=("train.py", "--lr", "0.1"), script="train.py", files={"train.py": "a" * 64}, commit="b" * 40
    )
    assert differences(recorded(tmp_path / "a", manifest, note()), recorded(tmp_path / "b", manifest, note())) == []


def test_every_difference_is_named(tmp_path: Path) -> None:
    a = Manifest(
        argv=("train.py", "--lr", "0.1", "--betas", "0.9", "-0.5", "small"),
        script="train.py",
        files={"train.py": "a" * 64, "old.py": "c" * 64},
        commit="b" * 40,
    )
    b = Manifest(
        argv=("torchrun", "--nproc-per-node", "2", "train.py", "--lr=0.2", "--betas", "0.9", "-0.5", "--fused"),
        script="torchrun train.py",
        files={"train.py": "d" * 64},
        commit="e" * 40,
    )
    other = RunConfiguration(
        settings={"threads": "8"}, packages={"apex": "0.1", "torch": "2.13.0"}, environment={"OMP_NUM_THREADS": "8"}
    )
    launcher = ProcessNote(process=1, torch="2.13.0")
    runs = (
        recorded(tmp_path / "a", a, note()),
        recorded(tmp_path / "b", b, launcher, note("2.13.0", 2, other)),
    )
    found = differences(*runs)
    assert found == [
        (ARGUMENTS, "--lr", "0.1", "0.2"),
        (ARGUMENTS, "--betas", "0.9 -0.5 small", "0.9 -0.5"),
        (ARGUMENTS, "launcher", None, "torchrun --nproc-per-node 2"),
        (ARGUMENTS, "--fused", None, SWITCH),
        (SOURCE, "commit", "b" * 12, "e" * 12),
        (SOURCE, "train.py", "a" * 8, "d" * 8),
        (SOURCE, "old.py", "c" * 8, None),
        (SOFTWARE, "torch", "2.4.0", "2.13.0"),
        (RANKS, "ranks", "1", "2"),
        (SETTINGS, "threads", "1", "8"),
        (PACKAGES, "numpy", "2.0", None),
        (PACKAGES, "apex", None, "0.1"),
        (ENVIRONMENT, "OMP_NUM_THREADS", None, "8"),
    ]
    texts = [difference_text(each, "a", "b") for each in configuration_differences(*runs)]
    assert texts[0] == "--lr 0.1 / 0.2" and texts[3] == "--fused (only b)"
    assert texts[5:8] == ["train.py (other contents)", "old.py (only a)", "torch 2.4.0 / 2.13.0"]


def test_what_an_older_recording_lacks_is_no_difference(tmp_path: Path) -> None:
    old = recorded(tmp_path / "a", Manifest(argv=("train.py",), script="train.py"), note(configuration=None))
    new = Manifest(argv=("train.py",), script="train.py", files={"train.py": "a" * 64}, commit="b" * 40)
    assert differences(old, recorded(tmp_path / "b", new, note())) == []
