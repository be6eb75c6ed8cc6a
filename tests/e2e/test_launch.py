"""A launched program behaves as without TrainCheck: arguments, folder, streams, exit, signals, imports, children."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from traincheck.runtime.launching import child_processes

DRIVER = """
import os, sys
from traincheck.runtime.launching.launch import launch
from traincheck.runtime.launching.run_settings import Settings
from traincheck.runtime.launching.command_target import Target
from traincheck.errors import TrainCheckError
folder = os.environ["TEST_RUN_FOLDER"]
try:
    status = launch(Target.parse(sys.argv[1:]), Settings(folder, "collect"), os.environ)
except TrainCheckError as error:
    sys.exit(f"{error.slug}: {error}")
sys.stderr.write(f"[driver {status.code} {status.signal} {status.signal_name}]")
sys.exit(status.code)
"""

TELL = """
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "cwd": os.getcwd(), "path": sys.path, "executable": sys.executable, "name": __name__,
    "file": globals().get("__file__"), "spec": __spec__ and __spec__.name, "package": __package__, "doc": __doc__,
    "globals": sorted(globals()), "loader": type(__loader__).__name__, "cached": globals().get("__cached__"),
    "sitecustomize": "sitecustomize" in sys.modules,
    "hooked": [type(finder).__name__ for finder in sys.meta_path].count("PostImport"),
}))
"""


def plain_environ(**more: str) -> dict[str, str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRAINCHECK_SESSION")}
    return {**environ, **more}


Launch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """The working directory of the programs."""
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / "run").mkdir()
    return folder


@pytest.fixture
def launched(workdir: Path) -> Launch:
    """Launches words in `workdir` and returns the finished process."""

    def run(*words: str, stdin: str = "", environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", DRIVER, *words],
            cwd=workdir,
            input=stdin,
            env=driver_environ(workdir, environ),
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def driver_environ(workdir: Path, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    return plain_environ(TEST_RUN_FOLDER=str(workdir.parent / "run"), **(environ or {}))


def launched_and_plain(
    launch: Launch, words: Sequence[str], workdir: Path, environ: Mapping[str, str] | None = None
) -> list[dict]:
    """Both environments that the program prints, launched and plain, without the keys that differ by design."""
    mine = launch(*words, environ=environ)
    assert mine.returncode == 0, mine.stderr
    plain = subprocess.run(
        [sys.executable, *words], cwd=workdir, env=plain_environ(**(environ or {})), capture_output=True, text=True
    )
    both = [json.loads(mine.stdout), json.loads(plain.stdout)]
    assert [environment.pop("hooked") for environment in both] == [2, 0]  # for torch and JAX
    return both


def test_a_script_sees_the_usual_environment(launched: Launch, workdir: Path) -> None:
    (workdir / "code").mkdir()
    (workdir / "code" / "tell.py").write_text(TELL)
    mine, plain = launched_and_plain(launched, ["code/tell.py", "--lr", "1", "-o", "x", "--help", "--", ""], workdir)
    assert mine == plain
    assert mine["argv"] == ["code/tell.py", "--lr", "1", "-o", "x", "--help", "--", ""]
    assert mine["path"][0] == str(workdir / "code")


def test_a_module_sees_the_usual_environment(launched: Launch, workdir: Path) -> None:
    (workdir / "package").mkdir()
    (workdir / "package" / "__init__.py").touch()
    (workdir / "package" / "tell.py").write_text(TELL)
    mine, plain = launched_and_plain(launched, ["-m", "package.tell", "-m", "x"], workdir)
    assert mine == plain
    assert mine["package"] == "package"


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_a_folder_or_zip_with_a_main_runs(launched: Launch, workdir: Path, kind: str) -> None:
    target = workdir / "app"
    if kind == "folder":
        target.mkdir()
        (target / "__main__.py").write_text(TELL)
    else:
        with zipfile.ZipFile(target, "w") as archive:
            archive.writestr("__main__.py", TELL)
    mine, plain = launched_and_plain(launched, ["app"], workdir)
    assert mine == plain


def test_an_empty_and_a_set_search_path_stay(launched: Launch, workdir: Path) -> None:
    (workdir / "tell.py").write_text(TELL)
    for path in ("", str(workdir / "mine"), f"{workdir}{os.pathsep}{os.pathsep}other"):
        mine, plain = launched_and_plain(launched, ["tell.py"], workdir, {"PYTHONPATH": path})
        assert mine == plain


def test_streams_are_the_programs_own(launched: Launch, workdir: Path) -> None:
    (workdir / "echo.py").write_text("import sys\nsys.stdout.write(sys.stdin.read()[::-1])\nsys.stderr.write('err')\n")
    done = launched("echo.py", stdin="abc")
    assert done.stdout == "cba"
    assert done.stderr == "err[driver 0 0 ]"


def test_a_descriptor_given_for_the_program_reaches_it(workdir: Path) -> None:
    (workdir / "write.py").write_text("import os, sys\nos.write(int(sys.argv[1]), b'here')\n")
    read, write = os.pipe()
    subprocess.run(
        [sys.executable, "-c", DRIVER, "write.py", str(write)],
        cwd=workdir,
        env=driver_environ(workdir),
        pass_fds=[write],
        timeout=60,
    )
    os.close(write)
    assert os.read(read, 10) == b"here"
    os.close(read)


def test_the_exit_code_is_the_programs_own(launched: Launch, workdir: Path) -> None:
    (workdir / "leave.py").write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
    assert launched("leave.py", "41").returncode == 41
    (workdir / "fail.py").write_text("def f():\n    raise KeyError('mine')\nf()\n")
    done = launched("fail.py")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert "traincheck" not in done.stderr


def test_a_death_by_signal_is_128_and_its_number(launched: Launch, workdir: Path) -> None:
    (workdir / "die.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    done = launched("die.py")
    assert done.returncode == 137
    assert "[driver 137 9 SIGKILL]" in done.stderr


def test_a_syntax_error_is_pythons_to_report(launched: Launch, workdir: Path) -> None:
    (workdir / "bad.py").write_text("def broken(:\n")
    done = launched("bad.py")
    assert done.returncode == 1
    assert "SyntaxError" in done.stderr and "bad.py" in done.stderr
    missing = launched("-m", "no.such.module")
    assert missing.returncode == 1 and "no.such" in missing.stderr


@pytest.mark.parametrize("words", [["python3"], [sys.executable], ["--", "python3"]])
def test_a_command_may_be_named_with_its_interpreter(words: list[str], launched: Launch, workdir: Path) -> None:
    (workdir / "said.py").write_text("import sys\nprint('said', *sys.argv[1:])\n")
    done = launched(*words, "said.py", "--lr", "1")
    assert "said --lr 1" in done.stdout, done.stderr


def test_invalid_programs_are_refused(launched: Launch, workdir: Path) -> None:
    (workdir / "empty").mkdir()
    (workdir / "job.sh").write_text("#!/bin/bash\nset -e\nfor x in 1 2; do echo $x; done\n")
    (workdir / "model.pt").write_bytes(b"PK\x00\x01" * 100)
    (workdir / "binary.py").write_bytes(b"\x00\x01\x02")
    assert "script-not-found" in launched("absent.py").stderr
    for name in ("empty", "job.sh", "model.pt", "binary.py"):
        assert "not-a-script" in launched(name).stderr, name
    assert "command-not-found" in launched("--", "no-such-program-at-all").stderr
    assert "no-target" in launched("--").stderr
    (workdir / "unheaded").write_bytes(b"\x7fnothing")
    (workdir / "unheaded").chmod(0o755)
    assert "command-not-runnable" in launched("--", "./unheaded").stderr


def test_a_script_may_have_another_name(launched: Launch, workdir: Path) -> None:
    (workdir / "train").write_text("#!/usr/bin/env python\nprint('\\d')  # a warning that is not ours to give\n")
    done = launched("train")
    assert done.stdout == "\\d\n"


def test_a_command_runs_and_its_python_children_attach(launched: Launch, workdir: Path) -> None:
    (workdir / "tell.py").write_text(TELL)
    (workdir / "job.sh").write_text(f"cd /\n{sys.executable} {workdir}/tell.py one\nexit 6\n")
    done = launched("--", "bash", "job.sh")
    assert done.returncode == 6
    mine = json.loads(done.stdout)
    assert mine["hooked"] == 2 and mine["cwd"] == "/"


def test_workers_attach_however_they_are_started(launched: Launch, workdir: Path) -> None:
    (workdir / "work.py").write_text(
        "import multiprocessing, sys\n"
        "def hooked(_):\n"
        "    return [type(finder).__name__ for finder in sys.meta_path].count('PostImport')\n"
        "if __name__ == '__main__':\n"
        "    for method in ('spawn', 'fork'):\n"
        "        with multiprocessing.get_context(method).Pool(1) as pool:\n"
        "            print(pool.map(hooked, [0]))\n"
    )
    assert launched("work.py").stdout == "[2]\n[2]\n"


def test_the_users_own_sitecustomize_still_runs(launched: Launch, workdir: Path) -> None:
    (workdir / "site").mkdir()
    (workdir / "site" / "sitecustomize.py").write_text("mark = __name__\n")
    (workdir / "ask.py").write_text("import sitecustomize\nprint(sitecustomize.mark, sitecustomize.__file__)\n")
    done = launched("ask.py", environ={"PYTHONPATH": str(workdir / "site")})
    assert done.stdout == f"sitecustomize {workdir / 'site' / 'sitecustomize.py'}\n"


def test_an_error_in_the_users_sitecustomize_is_reported_by_python(launched: Launch, workdir: Path) -> None:
    (workdir / "sitecustomize.py").write_text("import not_there_at_all\n")
    (workdir / "go.py").write_text("print('went on')\n")
    done = launched("go.py", environ={"PYTHONPATH": str(workdir)})
    assert done.stdout == "went on\n"
    assert "not_there_at_all" in done.stderr and "Error in sitecustomize" in done.stderr


def test_torch_is_itself_and_our_failure_is_one_line(launched: Launch, workdir: Path) -> None:
    """A torch of one line: no session can start on it, which is to be said once and to harm nothing."""
    (workdir / "torch").mkdir()
    (workdir / "torch" / "__init__.py").write_text("import sys\nhooks_inside = len(vars(__loader__))\n")
    (workdir / "use.py").write_text(
        "import importlib.util, sys\n"
        "importlib.util.find_spec('torch')\n"
        "import torch\n"
        "print(type(torch.__loader__).__name__, torch.__loader__ is torch.__spec__.loader, torch.hooks_inside,\n"
        "      sorted(vars(torch.__loader__)), any(type(f).__name__ == 'PostImport' for f in sys.meta_path))\n"
    )
    (workdir.parent / "run" / "session.json").unlink(missing_ok=True)
    done = launched("use.py")
    assert done.stdout == "SourceFileLoader True 2 ['name', 'path'] False\n"
    assert done.stderr.count("\n") <= 1
    assert done.stderr.startswith(("traincheck: this process is not observed: ", "[driver"))
    assert "Traceback" not in done.stderr


def test_a_program_without_torch_gets_no_message(launched: Launch, workdir: Path) -> None:
    (workdir / "nothing.py").write_text("")
    done = launched("nothing.py")
    assert (done.stdout, done.stderr) == ("", "[driver 0 0 ]")


BARE = """
import runpy, sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name == "traincheck":
            raise ModuleNotFoundError(name="traincheck")

sys.meta_path.insert(0, Without())
try:
    runpy.run_path(sys.argv[1])
except ImportError as error:
    assert error.name == "sitecustomize"  # as `site` expects it where there is none
print("on")
"""


@pytest.mark.parametrize("has_torch", [True, False])
def test_an_interpreter_without_traincheck_continues(workdir: Path, has_torch: bool) -> None:
    """If torch is installed, one line reports that it is not observed; otherwise there is no line."""
    bootstrap = Path(child_processes.BOOTSTRAP) / "sitecustomize.py"
    (workdir / "torch.py").write_text("")
    argv = [sys.executable, *([] if has_torch else ["-I", "-S"]), "-c", BARE, str(bootstrap)]
    done = subprocess.run(argv, cwd=workdir, env=plain_environ(), capture_output=True, text=True, timeout=60)
    assert done.stdout == "on\n", done.stderr
    assert done.stderr.count("\n") == int(has_torch)
    assert ("it has no traincheck" in done.stderr) is has_torch


WAIT = """
import os, signal, sys, time
def leave(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(7)
for name in ("SIGTERM", "SIGHUP", "SIGUSR1"):
    signal.signal(getattr(signal, name), leave)
try:
    open("ready", "w").close()
    for _ in range(600):  # one long sleep would go on where the signal comes just before it
        time.sleep(0.05)
except KeyboardInterrupt:
    try:
        time.sleep(0.5)
    except KeyboardInterrupt:
        print("twice", flush=True)
    print("cleaned up", flush=True)
    sys.exit(5)
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_scheduler_reaches_the_program_through_us(workdir: Path, name: str) -> None:
    (workdir / "wait.py").write_text(WAIT)
    # Tests that run under nohup inherit an ignored SIGHUP, which TrainCheck leaves ignored.
    not_ignored = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    argv = [sys.executable, "-c", not_ignored + DRIVER, "wait.py"]
    with subprocess.Popen(argv, cwd=workdir, env=driver_environ(workdir), stdout=subprocess.PIPE, text=True) as driver:
        wait_for(workdir / "ready")
        driver.send_signal(getattr(signal, name))
        assert driver.communicate(timeout=30)[0] == f"got {name}\n"
    assert driver.returncode == 7


def test_an_interrupt_without_a_terminal_is_passed_on(workdir: Path) -> None:
    (workdir / "wait.py").write_text(WAIT)
    argv = [sys.executable, "-c", DRIVER, "wait.py"]
    with subprocess.Popen(
        argv, cwd=workdir, env=driver_environ(workdir), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as driver:
        wait_for(workdir / "ready")
        driver.send_signal(signal.SIGINT)
        assert driver.communicate(timeout=30)[0] == "cleaned up\n"
    assert driver.returncode == 5


def test_ctrl_c_reaches_the_program_once(workdir: Path) -> None:
    (workdir / "wait.py").write_text(WAIT)
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(workdir)
        os.execve(sys.executable, [sys.executable, "-c", DRIVER, "wait.py"], driver_environ(workdir))
    wait_for(workdir / "ready")
    os.write(terminal, b"\x03")
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 5
    output = os.read(terminal, 10_000).decode()
    os.close(terminal)
    assert "cleaned up" in output and "twice" not in output


def test_an_interrupted_program_is_130(workdir: Path) -> None:
    (workdir / "sleep.py").write_text(
        "import time\nopen('ready', 'w').close()\nfor _ in range(600):\n    time.sleep(0.05)\n"
    )
    argv = [sys.executable, "-c", DRIVER, "sleep.py"]
    with subprocess.Popen(
        argv, cwd=workdir, env=driver_environ(workdir), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as driver:
        wait_for(workdir / "ready")
        driver.send_signal(signal.SIGINT)
        output = driver.communicate(timeout=30)[1]
    assert driver.returncode == 130
    assert "KeyboardInterrupt" in output and "[driver 130 2 SIGINT]" in output
