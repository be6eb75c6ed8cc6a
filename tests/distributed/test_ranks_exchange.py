"""Ranks without a common run folder send digests to the first rank, which makes the findings that files would give."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_ranks_compared import SAME_SHARD

from rank_jobs import PROGRAM, SLOWLY, TORCHRUN, WITHOUT_DDP, process_of_rank, rank_starter, run
from traincheck.trace.folder import RunFolder

EXCHANGE = ("--compare-ranks", "exchange")


def finding_rows(report: dict[str, Any]) -> list[tuple[object, ...]]:
    """The findings, but for how many steps later they were seen last."""
    keys = ("severity", "step", "title", "variables", "expected", "observed", "invariants", "ranks")
    return [tuple(map(str, (finding[key] for key in keys))) for finding in report["findings"]]


def assert_same(by_exchange: dict[str, Any], by_files: dict[str, Any]) -> None:
    """Both ways to compare ranks give the same findings and divergences, and miss nothing."""
    assert finding_rows(by_exchange) == finding_rows(by_files) != []
    assert by_exchange["not_observed"] == by_files["not_observed"] == []
    without_job = [
        [{**divergence, "job": ""} for divergence in report["divergences"]] for report in (by_exchange, by_files)
    ]
    assert without_job[0] == without_job[1] != []


@pytest.mark.slow
def test_exchange_and_files_give_the_same_findings(home: Path, compared_by_files: Path) -> None:
    by_files = json.loads((compared_by_files / "run" / "report.json").read_text())
    assert_same(run(home, "differ-exchange", PROGRAM.replace(*WITHOUT_DDP), *EXCHANGE, expect=3), by_files)


@pytest.mark.long
@pytest.mark.slow
def test_exchange_and_files_find_the_same_batches_on_both_ranks(home: Path) -> None:
    text = PROGRAM.replace(*SAME_SHARD).replace("sampler.set_epoch(epoch)", "")
    by_files = run(home, "shard-files", text, "--compare-ranks", "files", expect=3)
    assert_same(run(home, "shard-exchange", text, *EXCHANGE, expect=3), by_files)


@pytest.mark.slow
def test_a_finding_of_the_first_rank_stops_all_of_them(home: Path) -> None:
    text = PROGRAM.replace(*WITHOUT_DDP).replace(*SLOWLY)
    stopped = run(home, "exchange-stopped", text, *EXCHANGE, "--on-violation", "stop", expect=3)
    assert 1 <= stopped["counts"]["steps"] < 24
    assert json.loads((home / "exchange-stopped" / "run.json").read_text())["stopped_by_us"] is True


@pytest.mark.slow
def test_hosts_with_run_folders_of_their_own_need_no_setting(home: Path) -> None:
    """Two commands on one machine stand for two hosts: nothing but the job's address is known to both."""
    (home / "train.py").write_text(PROGRAM.replace(*WITHOUT_DDP))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = ["--master-addr", "127.0.0.1", "--master-port", str(free.getsockname()[1])]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *address]
    hosts = []
    for host in (0, 1):
        ours = [sys.executable, "-m", "traincheck", "run", "--book", "book.jsonl", "-o", f"host{host}", "--"]
        command = [*ours, *launcher, "--node-rank", str(host), "train.py", "7"]
        hosts.append(subprocess.Popen(command, cwd=home, stderr=subprocess.PIPE, text=True))
    stderr = [host.communicate(timeout=300)[1] for host in hosts]
    first, second = (json.loads((home / f"host{host}" / "report.json").read_text()) for host in (0, 1))
    assert [host.returncode for host in hosts] == [3, 0], stderr
    assert first["findings"][0]["diagnosis"] == "gradients-differ-between-ranks"
    assert [(rank["rank"], rank["end"], rank["compared"], rank["apart"]) for rank in first["ranks"]] == [
        (0, "ended", 24, 1),
        (1, "in another run folder", 24, 1),
    ]
    assert "Gradients of replicas differ" in stderr[0] and second["counts"]["errors"] == 0
    assert second["not_observed"] == [
        "rank 0, or a rank that took over from it, compares the ranks of this job: look for findings about several "
        "ranks in the run folder of that rank"
    ]
    assert all(note.exchange for note in RunFolder.open(home / "host1").notes() if note.world_size == 2)


@pytest.mark.slow
def test_a_rank_that_is_killed_ends_the_job_as_without_an_exchange(home: Path) -> None:
    (home / "train.py").write_text(PROGRAM.replace(*SLOWLY))
    ours = [sys.executable, "-m", "traincheck", "run", "--book", "book.jsonl", "-o", "exchange-killed", *EXCHANGE, "--"]
    running = subprocess.Popen([*ours, *TORCHRUN, "train.py", "7"], cwd=home, stderr=subprocess.PIPE, text=True)
    try:
        os.kill(process_of_rank(home / "exchange-killed", 1), signal.SIGKILL)
        _, stderr = running.communicate(timeout=120)
    finally:
        running.kill()
    assert running.returncode == 1, stderr
    report = json.loads((home / "exchange-killed" / "report.json").read_text())
    assert report["verdict"] == "clean"
    assert any("killed" in reason or "compared up to step" in reason for reason in report["not_observed"])


HASH = (
    "    dist.barrier()\n    del model",
    """    import hashlib
    told = [each.detach() for each in model.parameters()] + [each.grad for each in model.parameters()]
    digest = hashlib.sha256(b"".join(each.numpy().tobytes() for each in told)).hexdigest()
    with open(f"hash-{dist.get_rank()}", "w") as file:
        print(digest, loss.item(), total.item(), torch.rand(1).item(), file=file)
    del told
    dist.barrier()
    del model""",
)
"""Return the final state of a rank: parameters, gradients, losses, random stream."""


@pytest.mark.slow
def test_training_is_clean_and_bit_identical_with_an_exchange(home: Path) -> None:
    text = PROGRAM.replace(*HASH)
    (home / "train.py").write_text(text)

    def hashes() -> list[str]:
        files = [home / f"hash-{rank}" for rank in (0, 1)]
        texts = [file.read_text() for file in files]
        for file in files:
            file.unlink()
        return texts

    done = subprocess.run([*rank_starter(home), "train.py", "7"], cwd=home, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    plain = hashes()
    report = run(home, "identical-exchange", text, *EXCHANGE)
    assert hashes() == plain
    assert report["verdict"] == "clean" and not report["not_observed"] and report["counts"]["steps"] == 24
    assert list((home / "identical-exchange").glob("ranks-*.json"))
    sent = [note.sent for note in RunFolder.open(home / "identical-exchange").notes() if note.rank == 1]
    assert any(counts.get("messages", 0) > 24 for counts in sent), "the ranks exchanged messages"
