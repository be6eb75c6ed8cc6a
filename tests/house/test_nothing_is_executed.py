"""Reading a file executes nothing: the source runs no code that a file names or holds, and no way leads round that.

What is needed all the same is listed with its reason, by file and call, so that every new one is looked at.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository import SRC, shown_path, tree

MODULES_NEVER = {
    *("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "dbm", "copyreg"),
    *("yaml", "ruamel", "runpy", "code", "codeop", "imp", "pty", "xml", "xmlrpc", "jsonpickle", "telnetlib"),
}
"""Modules that read code, objects or entities; TrainCheck imports none."""

CALLS = {
    *("eval", "exec", "compile", "__import__", "breakpoint", "import_module", "load_module", "exec_module"),
    *("spec_from_file_location", "module_from_spec", "run_path", "run_module", "system", "popen", "Popen"),
    *("check_output", "check_call", "getoutput", "execv", "execve", "execvp", "spawnv", "posix_spawn", "fromfile"),
    *("find_class", "Unpickler", "CDLL", "dlopen", "extractall", "unpack_archive", "globals"),
}
"""Names of functions that run what they are given, or may, whatever they are called on."""

CALLS_OF = {
    "run": {"subprocess", "runpy"},
    "call": {"subprocess"},
    "load": {"torch", "np", "numpy", "ctypes", "toml"},
    "loads": {"torch", "np", "numpy"},
    "unwrap": {"inspect"},
}
"""The same for names that others have, too: by what they are called on."""

ALLOWED: dict[tuple[str, str], str] = {
    (
        "runtime/launching/command_target.py",
        "compile",
    ): "asks whether the user's own script is Python; what comes of it is thrown away",
    ("runtime/launching/launch.py", "Popen"): "starts the program that the user named",
    ("runtime/process_session.py", "exec"): "a text of ours that raises KeyboardInterrupt",
    ("reporting/alerts/command.py", "Popen"): "starts the command that the user named, without a shell",
    ("reporting/trackers/tracking.py", "Popen"): "our own worker, with the Python that runs us",
    ("reporting/trackers/worker.py", "import_module"): "the tracker that --track named, of an installed package",
    ("cli/commands/doctor.py", "run"): "asks a Python of its own what torch has",
    ("cli/commands/demo.py", "run"): "`traincheck run` on the two programs that come with us",
    (
        "runtime/callbacks.py",
        "import_module",
    ): "the function that --on-violation names, on the command line of the user",
    ("runtime/launching/bootstrap/sitecustomize.py", "__import__"): "the sitecustomize that it shadows",
    ("sdc/worker_processes.py", "Popen"): "starts a Python of its own that executes the workload",
    ("sdc/workload/workload.py", "import_module"): "the workload that the user names, on the command line",
    ("sdc/workload/workload.py", "spec_from_file_location"): "",
    ("sdc/workload/workload.py", "module_from_spec"): "",
    ("sdc/workload/workload.py", "exec_module"): "",
    (
        "sources/replay/peer_check.py",
        "unwrap",
    ): "torch.load with weights_only: tensors, numbers and texts only, of another rank of the same job",
    ("sources/verification/updates/algorithms.py", "unwrap"): "compares the function of a step, and calls nothing",
    ("diagnoses/catalogue.py", "import_module"): "the files of the catalogue, which are in our own package",
    ("plugins.py", "import_module"): "extensions of installed packages; no name comes from a file that is read",
    ("testing/sources.py", "import_module"): "the declaration that a test names",
    ("testing/sources.py", "run"): "imports that declaration in a Python without torch",
    ("cli/main.py", "import_module"): "the modules of commands, by names in the source",
    ("sources/base.py", "import_module"): "modules of torch, by names in the source",
    ("sources/functions/context_managers.py", "import_module"): "",
    ("sources/distributed/collectives.py", "import_module"): "",
    ("sources/functions/lifecycle.py", "import_module"): "",
}
"""File and call, and why it may stand there; an empty reason is that of the line above."""

LOOKS_ON = frozenset(("src/traincheck/testing/leftovers.py",))
"""Files that look whether functions of loaded modules are what they were, by name, and call none of them."""

SETTINGS_NEVER = {"shell", "allow_pickle"}
"""Arguments that are never given as True; `weights_only` is never False."""


def calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """The calls in a file: what is called, and on what."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id, "", node
            elif isinstance(node.func, ast.Attribute):
                owner = node.func.value
                yield node.func.attr, owner.id if isinstance(owner, ast.Name) else "?", node


MODULES = sorted(SRC.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_unsafe_modules_are_not_imported(path: Path) -> None:
    for node in ast.walk(tree(path)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not MODULES_NEVER & {name.partition(".")[0] for name in names}, (
            f"{shown_path(path)}:{getattr(node, 'lineno', 0)}"
        )
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and shown_path(path) not in LOOKS_ON:
            assert node.value not in MODULES_NEVER, f"{shown_path(path)}:{node.lineno}: a name for import_module?"


def taken_from(path: Path, name: str) -> str:
    """The module that a bare name is imported from, empty where it is the file's own."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom) and any(name in (alias.name, alias.asname) for alias in node.names):
            return node.module or ""
    return ""


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_unsafe_functions_are_not_called(path: Path) -> None:
    here = path.relative_to(SRC).as_posix()
    for name, owner, node in calls(path):
        home = owner or taken_from(path, name).partition(".")[0]
        runs = name in CALLS and not (name == "compile" and owner == "re")
        if runs or home in CALLS_OF.get(name, ()):
            assert (here, name) in ALLOWED, f"{shown_path(path)}:{node.lineno} calls {owner}.{name}"
        for keyword in node.keywords:
            value = keyword.value.value if isinstance(keyword.value, ast.Constant) else "?"
            assert keyword.arg not in SETTINGS_NEVER or value is False, (
                f"{shown_path(path)}:{node.lineno} {keyword.arg}"
            )
            assert keyword.arg != "weights_only" or value is True, f"{shown_path(path)}:{node.lineno} {keyword.arg}"


@pytest.mark.parametrize("path", MODULES, ids=shown_path)
def test_unsafe_functions_have_no_aliases(path: Path) -> None:
    """Aliases are values (`run = eval`) and imports from builtins."""
    called = {id(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)}
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Name) and id(node) not in called:
            assert node.id not in {"eval", "exec", "__import__", "__builtins__"}, f"{shown_path(path)}:{node.lineno}"
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = {alias.name for alias in node.names} | {getattr(node, "module", "")}
            taken = {"builtins", "os.system", "system", "popen", "exec", "eval"} & names
            assert not taken or shown_path(path) in LOOKS_ON, f"{shown_path(path)}:{node.lineno} imports {taken}"


def test_exceptions_are_still_needed() -> None:
    present = {(path.relative_to(SRC).as_posix(), name) for path in MODULES for name, _, _ in calls(path)}
    assert set(ALLOWED) <= present


def test_templates_escape_everything_except_own_files() -> None:
    """Autoescape is on, and `safe` stands behind our style and script alone."""
    (made,) = [node for path in MODULES for name, _, node in calls(path) if name == "Environment"]
    settings = {keyword.arg: keyword.value for keyword in made.keywords}
    assert isinstance(settings["autoescape"], ast.Constant) and settings["autoescape"].value is True
    for path in SRC.rglob("*.j2"):
        text = path.read_text(encoding="utf-8")
        assert text.count("safe") - text.count("marked safe") == text.count("{{ style | safe }}") + text.count(
            "{{ script | safe }}"
        )
        assert "autoescape" not in text.partition("#}")[2]
    marked = [path for path in MODULES if "Markup(" in path.read_text(encoding="utf-8")]
    assert marked == []
