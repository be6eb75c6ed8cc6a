"""No secret of a real run reaches the run folder, a report or a message. Files have the umask of the user, and no
port is open by default.

Files are made with the umask of the user, and nothing listens unless it was asked to.
"""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import warm_commands
from alert_receivers import receiving
from processes import Running, until
from traincheck.invariants.book import Book, write_book
from traincheck.vocab.invariant import Invariant

PROGRAM = """
import os, sys, time
from pathlib import Path
import torch


class Client:
    pass


def connect(host, api_key, tokenizer="gpt2"):
    return host


def configure(options, where):
    return where


def read_password():
    return "t0p-Of-The-Pw"


def told(text):
    raise ValueError("wrong: " + text)


def train(steps, bad, secret):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    group = {"params": list(model.parameters()), "lr": 0.05, "note": secret, "auth_token": "gr0up-tok"}
    optimizer = torch.optim.SGD([group])
    for step in range(1, steps + 1):
        connect("host", "k3y-by-name", tokenizer="gpt2")
        connect(os.environ["SERVICE_SECRET"], "k3y-by-name")
        configure(secret, "https://me:ur1-pw@host/data?token=qu3ry")
        read_password()
        x = torch.randn(16, 4)
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        if bad and step in (6, 7):
            optimizer.zero_grad()
        optimizer.step()
        try:
            told(secret)
        except ValueError:
            pass
        while step == 8 and (Path("wait").exists() or (Path("until").exists() and not any(
            '"violations":[{' in path.read_text() for path in Path("run").glob("live-*.json")))):
            time.sleep(0.02)
    torch.save({"x": torch.zeros(1)}, "last.pt")


if __name__ == "__main__":
    secret = sys.argv[sys.argv.index("--password") + 1] if "--password" in sys.argv else "n0ne-here"
    train(12, "bad" in sys.argv, secret)
    print("done", flush=True)
"""

SECRETS = {
    "argv": "argv-S3cret",
    "joined": "j0ined-S3cret",
    "environment": "env1r0n-S3cret",
    "by name": "k3y-by-name",
    "in a group": "gr0up-tok",
    "in a URL": "ur1-pw",
    "in a query": "qu3ry",
    "returned": "t0p-Of-The-Pw",
    "webhook": "wh-p4th-S3cret",
    "metrics": "m3trics-S3cret",
    "shape": "hf_abcdefghijklmnop1234",
    "reason": "sk-proj-r34son0r34son0",
    "by shape in the name": "ghp_0123456789abcdefghij0123",
}
WORDS = ("train.py", "bad", "--password", SECRETS["argv"], f"--api-key={SECRETS['joined']}", "--note", SECRETS["shape"])
READABLE = ("--tokenizer", "gpt2", "--max-tokens", "100")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_invariant: Callable[..., Invariant]) -> Path:
    """A folder with the program and a book, and an environment with a secret."""
    (tmp_path / "train.py").write_text(PROGRAM)
    write_book(Book((new_invariant(),)), tmp_path / "good.jsonl")
    monkeypatch.setenv("SERVICE_SECRET", SECRETS["environment"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def begin(*words: str) -> Running:
        started.append(Running(home, *words))
        return started[-1]

    yield begin
    for running in started:
        running.kill()


def run(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return warm_commands.run([sys.executable, "-m", "traincheck", *words], cwd=home)


def found_in(data: bytes) -> list[str]:
    return [name for name, secret in SECRETS.items() if secret.encode() in data]


def texts(path: Path) -> Iterator[bytes]:
    """All that a file holds, unpacked."""
    data = path.read_bytes()
    yield data
    if path.suffix == ".arrows":
        with pa.OSFile(str(path)) as file:
            yield str(pa.ipc.open_stream(file).read_all().to_pydict()).encode()
    if data.startswith(b"\x1f\x8b"):
        yield gzip.decompress(data)


def assert_no_secrets(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 5
    leaks = {path.name: names for path in files for data in texts(path) if (names := found_in(data))}
    assert leaks == {}


@pytest.mark.slow
def test_a_checked_run_leaves_no_secret(
    home: Path, start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiving(f"/{SECRETS['webhook']}") as receiver:
        monkeypatch.setenv("TRAINCHECK_ALERT", receiver.url)
        monkeypatch.setenv("TRAINCHECK_METRICS_TOKEN", SECRETS["metrics"])
        (home / "wait").touch()
        options = ("-b", "good.jsonl", "-o", "run", "--package", "train", "--snapshot", "--metrics", "0")
        running = start("run", *options, *WORDS, *READABLE)
        until(lambda: (home / "run" / "run.json").exists() and list((home / "run").glob("live-*.json")))
        reason = f"it is {SECRETS['reason']}"
        assert run(home, "ctl", "run", "mute", "--reason", reason, rule_id(home)).returncode == 0
        (home / "wait").unlink()
        assert running.ends() in (0, 3)
        until(lambda: len(receiver.bodies) >= 2)
        assert [names for body in receiver.bodies if (names := found_in(body))] == []
    assert "done" in running.out and found_in((running.out + running.err).encode()) == []
    assert_no_secrets(home / "run")
    manifest = json.loads((home / "run" / "run.json").read_text())
    redacted = ["train.py", "bad", "--password", "[redacted]", "--api-key=[redacted]", "--note", "[redacted]"]
    assert manifest["argv"] == [*redacted, *READABLE]
    monkeypatch.delenv("TRAINCHECK_ALERT")
    again = run(home, "report", "run", "--json", "-o", "page.html")
    check = run(home, "check", "run", "-b", "good.jsonl", "--report", "json=out.json", "--report", "html=out.html")
    for told_again in (again.stdout, again.stderr, check.stdout, check.stderr):
        assert found_in(told_again.encode()) == []
    for name in ("page.html", "out.json", "out.html"):
        assert found_in((home / name).read_bytes()) == []


def rule_id(home: Path) -> str:
    return str(json.loads((home / "good.jsonl").read_text().splitlines()[1])["id"])


@pytest.mark.slow
def test_a_recorded_run_leaves_no_secret_and_teaches_none(home: Path) -> None:
    done = run(home, "collect", "-o", "run", *WORDS, *READABLE)
    assert done.returncode == 0 and found_in(done.stderr.encode()) == []
    assert_no_secrets(home / "run")
    table = b"".join(texts(next((home / "run").glob("events-*.arrows"))))
    assert b"k3y" not in table and b"[redacted]" in table and b"gpt2" in table
    learned = run(home, "infer", "run", "-o", "book.jsonl", "--tally", "tally.gz")
    assert learned.returncode == 0
    for name in ("book.jsonl", "book.jsonl.journal.jsonl", "tally.gz"):
        assert all(found_in(data) == [] for data in texts(home / name))


@pytest.mark.slow
def test_an_observed_block_leaves_no_secret(home: Path) -> None:
    (home / "inside.py").write_text(
        "import traincheck, train\n"
        f"with traincheck.observe('run', book='good.jsonl', name='my {SECRETS['by shape in the name']}'):\n"
        "    train.train(12, True, 'argv-S3cret')\n"
    )
    done = warm_commands.run([sys.executable, "inside.py", "--password", SECRETS["argv"]], cwd=home)
    assert done.returncode == 0, done.stderr
    assert "TrainCheck ERROR" in done.stderr and found_in(done.stderr.encode()) == []
    assert_no_secrets(home / "run")


def test_our_own_errors_contain_no_secret(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCHECK_METRICS", SECRETS["environment"])
    for debug in ("0", "1"):
        monkeypatch.setenv("TRAINCHECK_DEBUG", debug)
        done = run(home, "run", "-b", "good.jsonl", "-o", "run", "train.py")
        assert done.returncode == 2 and "TRAINCHECK_METRICS" in done.stderr
        assert found_in(done.stderr.encode()) == []


@pytest.mark.slow
@pytest.mark.parametrize("umask", [0o027, pytest.param(0o077, marks=pytest.mark.long)])
def test_files_are_made_with_the_umask_of_the_user(home: Path, umask: int) -> None:
    def limited() -> None:
        os.umask(umask)

    (home / "until").touch()  # the program waits until it was found to be wrong, so that a snapshot is written
    words = (
        "run",
        "-b",
        "good.jsonl",
        "-o",
        "run",
        "--snapshot",
        "--report",
        "json=r.json",
        "--report",
        "html=r.html",
        *WORDS,
    )
    recorded, learned = ("collect", "-o", "rec", "train.py"), ("infer", "rec", "-o", "b.jsonl", "--tally", "t.gz")
    for command in (words, recorded, learned):
        line = [sys.executable, "-m", "traincheck", *command]
        subprocess.run(line, cwd=home, preexec_fn=limited, capture_output=True, timeout=300)
    made = [*(home / "run").rglob("*"), *(home / "rec").rglob("*"), home / "run", home / "rec"]
    made += [home / name for name in ("r.json", "r.html", "b.jsonl", "b.jsonl.journal.jsonl", "t.gz")]
    assert any(path.suffix == ".pt" for path in made) and any(path.suffix == ".arrows" for path in made)
    for path in made:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o777 if path.is_dir() else 0o666) & ~umask, f"{path} {mode:o}"


# -- listening ---------------------------------------------------------------------------------------------------------

LISTENS = "0A"


def listening(process: int) -> list[str]:
    """The addresses at which a process listens, as the kernel has them in /proc/PID/net/tcp: in hexadecimal digits."""
    owned = set()
    for entry in Path(f"/proc/{process}/fd").iterdir():
        try:
            owned.add(str(entry.readlink()))
        except OSError:
            continue
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS and f"socket:[{fields[9]}]" in owned:
                addresses.append(fields[1])
    return addresses


def family(process: int) -> list[int]:
    """The process and all that it has started."""
    processes = [process]
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == process:
            processes += family(int(path.parent.name))
    return processes


needs_proc = pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="reads /proc")


@needs_proc
def test_no_port_is_open_by_default(home: Path, start: Callable[..., Running]) -> None:
    (home / "wait").touch()
    running = start("run", "-b", "good.jsonl", "-o", "run", "train.py")
    until(lambda: list((home / "run").glob("live-*.json")))
    processes = family(running.process.pid)
    assert len(processes) > 1
    assert {process: listening(process) for process in processes} == {process: [] for process in processes}
    (home / "wait").unlink()
    assert running.ends() == 0


@pytest.mark.slow
@needs_proc
def test_metrics_listen_on_this_host_only(home: Path, start: Callable[..., Running]) -> None:
    (home / "wait").touch()
    running = start("run", "-b", "good.jsonl", "-o", "run", "--metrics", "0", "train.py")
    until(lambda: "metrics at http://127.0.0.1:" in running.err and list((home / "run").glob("live-*.json")))
    command, *others = family(running.process.pid)
    (address,) = listening(command)
    assert address.startswith("0100007F:")
    assert all(listening(process) == [] for process in others)
    url = running.err.split("metrics at ")[1].split()[0]
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert b"traincheck_steps_total" in answer.read()
    (home / "wait").unlink()
    assert running.ends() == 0


def test_other_hosts_are_let_in_with_a_token_only(home: Path) -> None:
    done = run(home, "run", "-b", "good.jsonl", "-o", "run", "--metrics", "0.0.0.0:0", "train.py")
    assert done.returncode == 2 and "TRAINCHECK_METRICS_TOKEN" in done.stderr and "bad-option" in done.stderr
    assert not (home / "run").exists()
