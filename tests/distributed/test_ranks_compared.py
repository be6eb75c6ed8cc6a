"""Two gloo ranks in one run folder: rules across ranks, and findings when the ranks diverge."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rank_jobs import PROGRAM, SLOWLY, TORCHRUN, WITHOUT_DDP, collect, free_port, run, traincheck
from traincheck.trace.folder import RunFolder

SAME_SHARD = ("sampler=sampler)", "shuffle=False)")
"""Without the sampler every rank sees the same data."""


STATE = ("rank", "end", "steps", "compared", "apart")


def findings(home: Path, folder: str, expect: int) -> str:
    """All that the check of a folder found, in one text."""
    traincheck(home, "check", folder, "--book", "book.jsonl", "--report", f"json={folder}.json", expect=expect)
    return json.dumps(json.loads((home / f"{folder}.json").read_text())["findings"])


@pytest.mark.slow
def test_diverging_ranks_are_reported(home: Path) -> None:
    collect(home, "clean", PROGRAM, 4)
    assert findings(home, "clean", 0) == "[]"
    collect(home, "apart", PROGRAM.replace(*WITHOUT_DDP), 5)
    assert "Gradients of replicas differ between ranks" in findings(home, "apart", 3)
    collect(home, "shard", PROGRAM.replace(*SAME_SHARD).replace("sampler.set_epoch(epoch)", ""), 6)
    assert "Ranks train on the same batch" in findings(home, "shard", 3)


@pytest.mark.slow
def test_diverging_ranks_are_reported_while_they_train(home: Path, compared_by_files: Path) -> None:
    clean = run(home, "live-clean", PROGRAM)
    assert clean["verdict"] == "clean" and not clean["not_observed"]
    assert [tuple(rank[name] for name in STATE) for rank in clean["ranks"]] == [
        (0, "ended", 24, 24, None),
        (1, "ended", 24, 24, None),
    ]
    report = json.loads((compared_by_files / "run" / "report.json").read_text())
    (error,) = [finding for finding in report["findings"] if finding["severity"] == "error"]
    assert error["diagnosis"] == "gradients-differ-between-ranks" and error["step"] == 1
    assert any(name.endswith("0.weight") for name in error["variables"])
    assert (error["ranks"], error["compared"]) == ([0, 1], 2)
    assert "rank 0 and rank 1 differ in the gradient that the update used" in error["observed"]
    (divergence,) = report["divergences"]
    assert (divergence["step"], divergence["what"], divergence["ranks"]) == (1, "gradients differ", [0, 1])
    assert [tuple(rank[name] for name in STATE) for rank in report["ranks"]] == [
        (0, "ended", 24, 24, 1),
        (1, "ended", 24, 24, 1),
    ]
    sentence = "since step 1, gradients differ between ranks 0, 1"
    assert sentence in traincheck(compared_by_files, "report", "run", expect=3)
    assert sentence[1:] in (compared_by_files / "run" / "report.html").read_text()


@pytest.mark.slow
def test_diverging_ranks_are_stopped(home: Path) -> None:
    stopped = run(
        home,
        "stopped",
        PROGRAM.replace(*WITHOUT_DDP).replace(*SLOWLY),
        "--on-violation",
        "stop",
        expect=3,
        launcher=TORCHRUN,
    )
    assert 1 <= stopped["counts"]["steps"] < 24
    assert json.loads((home / "stopped" / "run.json").read_text())["stopped_by_us"] is True


SPAWNED = PROGRAM.replace('dist.init_process_group("gloo")', 'dist.init_process_group("gloo", rank=rank, world_size=2)')
SPAWNED = SPAWNED.replace("def main(seed):", "def main(rank, seed):").replace(
    "main(int(sys.argv[1]))",
    """
import os
if __name__ == "__main__":
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[2])
    for again in ("", "yes"):
        os.environ["AGAIN"] = again
        torch.multiprocessing.spawn(main, (int(sys.argv[1]),), nprocs=2)
""",
)


@pytest.mark.slow
def test_ranks_that_a_program_starts_by_itself_are_known(home: Path) -> None:
    folder = home / "spawned"
    folder.mkdir()
    second = SPAWNED.replace("model(batch)", "(inner if os.environ['AGAIN'] else model)(batch)")
    (folder / "train.py").write_text("import os\n" + second)  # rules of one program go by its name
    port = str(free_port())
    traincheck(folder, "collect", "-o", "run", "--", sys.executable, "train.py", "5", port)
    jobs = RunFolder.open(folder / "run").jobs()
    assert [job.name.rsplit("-", 1)[1] for job in jobs] == [port, f"{port}#2"]
    assert [(job.size, sorted(job.files)) for job in jobs] == [(2, [0, 1])] * 2
    traincheck(folder, "check", "run", "--book", str(home / "book.jsonl"), "--report", "json=check.json", expect=3)
    (finding,) = json.loads((folder / "check.json").read_text())["findings"]
    assert finding["diagnosis"] == "gradients-differ-between-ranks" and finding["times"] > 1
