"""Screening: verdicts by numbers made up, files of known fingerprints, and rounds of real work with faults in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from traincheck.errors import (
    FingerprintsOfOthers,
    FingerprintsTooNew,
    FingerprintsUnreadable,
    OtherFile,
    WorkloadUnusable,
)
from traincheck.sdc.faults.fault import Fault
from traincheck.sdc.screening import rounds as module
from traincheck.sdc.screening.reference_fingerprints import (
    ReferenceFingerprints,
    check_replaceable_reference,
    read_reference,
    write_reference,
)
from traincheck.sdc.screening.rounds import Screening, reference_from, screen
from traincheck.sdc.screening.verdicts import OTHERS, OVER_TIME, REFERENCE, Rounds, judge

CPU = torch.device("cpu")
SOFTWARE = {"torch": "2", "device": "cpu"}


def rounds(*fingerprints: dict[str, str], device: str = "cpu", undetermined: tuple[str, ...] = ()) -> Rounds:
    made = Rounds(device, SOFTWARE, undetermined=undetermined)
    for fingerprint_set in fingerprints:
        made.add(fingerprint_set)
    return made


def verdicts(
    *devices: Rounds, reference: ReferenceFingerprints | None = None
) -> list[tuple[str, list[tuple[str, str, int]]]]:
    results = judge(devices, reference)
    return [
        (
            result["verdict"],
            [(mismatch["what"], mismatch["reason"], mismatch["round"]) for mismatch in result["first_wrong"]],
        )
        for result in results
    ]


GOOD, ODD = {"a": "1", "b": "2"}, {"a": "1", "b": "3"}


def test_over_time() -> None:
    assert verdicts(rounds(GOOD, GOOD, GOOD)) == [("clean", [])]
    assert verdicts(rounds(GOOD, GOOD, ODD, GOOD)) == [("corrupt", [("b", OVER_TIME, 3)])]
    assert verdicts(rounds(ODD, GOOD, GOOD)) == [("corrupt", [("b", OVER_TIME, 1)])]
    assert verdicts(rounds(GOOD, ODD, undetermined=("cumsum",)))[0][0] == "undecided"


def test_known_fingerprints_decide() -> None:
    reference = ReferenceFingerprints({}, SOFTWARE, GOOD)
    assert verdicts(rounds(GOOD, GOOD), reference=reference) == [("clean", [])]
    assert verdicts(rounds(ODD, ODD), reference=reference) == [("corrupt", [("b", REFERENCE, 1)])]
    # Undetermined operations explain what differs from round to round, and not what is the same in each and wrong.
    assert verdicts(rounds(ODD, ODD, undetermined=("cumsum",)), reference=reference)[0][0] == "corrupt"


def test_against_other_devices() -> None:
    three = [rounds(GOOD, GOOD, device=f"cuda:{number}") for number in range(2)]
    odd = rounds(ODD, ODD, device="cuda:2")
    assert verdicts(*three, odd) == [("clean", []), ("clean", []), ("corrupt", [("b", OTHERS, 1)])]
    assert [verdict for verdict, _ in verdicts(three[0], odd)] == ["corrupt", "corrupt"]
    odd.software = {"torch": "3"}
    assert [verdict for verdict, _ in verdicts(three[0], odd)] == ["clean", "clean"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "known.json"
    write_reference(ReferenceFingerprints({"workload": "w"}, SOFTWARE, GOOD), path)
    return path


def test_known_fingerprints_round_trip(file: Path) -> None:
    stored = read_reference(file)
    assert stored.fingerprints == GOOD and stored.software == SOFTWARE
    stored.check_comparable(file, {"workload": "w"}, SOFTWARE)
    check_replaceable_reference(file)
    with pytest.raises(FingerprintsOfOthers, match="threads unknown"):
        stored.check_comparable(file, {"workload": "w"}, {**SOFTWARE, "torch": "3", "threads": "4"})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[:-20], "not JSON"),
        (lambda text: text.replace('"b": "2"', '"b": "4"'), "changed since"),
        (lambda text: text.replace("traincheck-sdc-fingerprints", "other"), "of another kind"),
        (lambda text: text.replace('"fingerprints": {', '"prints": {'), "parts of it are missing"),
        (lambda text: "[1, 2]", "of another kind"),
        (lambda text: "[" * 100_000, "not JSON"),
    ],
)
def test_a_damaged_file_is_reported(file: Path, damage, message: str) -> None:
    file.write_text(damage(file.read_text()))
    with pytest.raises(FingerprintsUnreadable, match=message) as error:
        read_reference(file)
    assert str(file) in str(error.value) and "-o FILE" in str(error.value)
    with pytest.raises(OtherFile):
        check_replaceable_reference(file)


def test_other_versions_and_no_file(file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(FingerprintsTooNew, match="format 2"):
        read_reference(file)
    with pytest.raises(FingerprintsUnreadable, match="No such file"):
        read_reference(tmp_path / "nowhere")


def screened(*faults: Fault, reference: ReferenceFingerprints | None = None, rounds: float = 0.0):
    screening = Screening("decoder-tiny", 2, 0, 1, rounds, faults)
    result = screen(screening, [CPU], lambda software: None, lambda phase, done, total: None)
    (verdict,) = judge(result.devices, reference)
    return verdict, screening, result.devices[0]


@pytest.mark.usefixtures("settled_again")
def test_rounds_of_real_work() -> None:
    verdict, screening, clean = screened()
    assert verdict["verdict"] == "clean" and verdict["rounds"] == 2 and verdict["compared"] > 200
    reference = reference_from(screening, clean)
    assert {"products, step 1, forward 32x64-bfloat16", "training, step 2, optimizer head.weight"} <= set(
        reference.fingerprints
    )
    assert screened(reference=reference)[0]["verdict"] == "clean"

    # One bit, the lowest, of one gradient, in one of two steps.
    once = screened(Fault("bitflip", "backward", "layers.1.attention", bit=0, first=2), reference=reference)[0]
    assert once["verdict"] == "corrupt"
    assert once["first_wrong"][0]["what"] == "training, step 2, backward layers.1.attention"

    lasting = Fault("stuck", "forward", "head", bit=3, elements=3)
    assert screened(lasting)[0]["verdict"] == "clean"  # the same in each round
    by_known = screened(lasting, reference=reference)[0]
    assert by_known["verdict"] == "corrupt"
    assert by_known["first_wrong"][0]["what"] == "training, step 1, forward head"
    comes_and_goes = screened(Fault("bitflip", "optimizer", "*.query.weight", bit="any", chance=0.5))[0]
    assert comes_and_goes["verdict"] == "corrupt" and comes_and_goes["first_wrong"][0]["reason"] == OVER_TIME
    # A defective lane stays in place, and each round gets other wrong values from it.
    defective = screened(Fault("intermittent", "forward", "layers.1.attention", chance=1))[0]
    assert defective["verdict"] == "corrupt" and defective["first_wrong"][0]["reason"] == OVER_TIME


def test_fingerprints_with_a_fault_are_not_saved(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "traincheck",
        "sdc",
        "screen",
        "--fault",
        "intermittent@forward",
        "-o",
        "good.json",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "-o was given 'good.json'; expected no --fault" in done.stderr


@pytest.mark.usefixtures("settled_again")
def test_workload_errors_are_reported_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "raises_here.py").write_text(
        "from traincheck.sdc.workload.workload import load_workload\n"
        "def workload(seed, device):\n"
        "    made = load_workload('decoder-tiny', seed, device)\n"
        "    made.submodules = None\n"
        "    made.loss = lambda model, batch: model(batch) / 'x'\n"
        "    return made\n"
    )
    screening = Screening(f"{tmp_path}/raises_here.py:workload", 1, 0, 1, 0)
    with pytest.raises(WorkloadUnusable, match="it raised TypeError") as error:
        screen(screening, [CPU], lambda software: None, lambda phase, done, total: None)
    assert "raises_here.py, line 5" in str(error.value)


@pytest.mark.usefixtures("settled_again")
def test_ctrl_c_leaves_whole_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = 0
    original = module.Exercise.round

    def round_(self, number, stepped):
        nonlocal begun
        begun += 1
        if begun == 3:
            raise KeyboardInterrupt
        return original(self, number, stepped)

    monkeypatch.setattr(module.Exercise, "round", round_)
    screening = Screening("decoder-tiny", 1, 0, 1, 60)
    result = screen(screening, [CPU], lambda software: None, lambda phase, done, total: None)
    assert result.interrupted and result.devices[0].number == 2
    begun = 2
    with pytest.raises(KeyboardInterrupt):
        screen(screening, [CPU], lambda software: None, lambda phase, done, total: None)


def test_the_command_prints_json_and_sets_the_exit_code(tmp_path: Path) -> None:
    words = (
        "--workload",
        "decoder-tiny",
        "--seconds",
        "1",
        "--json",
        "--fault",
        "intermittent@gradient:head.weight,chance=0.2",
    )
    command = [sys.executable, "-m", "traincheck", "sdc", "screen", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 3, done.stderr
    (device,) = json.loads(done.stdout)["devices"]
    assert device["verdict"] == "corrupt" and device["first_wrong"][0]["what"].endswith("head.weight")
