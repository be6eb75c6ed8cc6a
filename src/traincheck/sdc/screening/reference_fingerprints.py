"""Store the fingerprints of a healthy device in a file, to compare other devices with it.

Imports no torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from traincheck.errors import FingerprintsOfOthers, FingerprintsTooNew, FingerprintsUnreadable, OtherFile
from traincheck.files import read_bounded, write_whole

FORMAT, VERSION = "traincheck-sdc-fingerprints", 1
"""1: the first."""


@dataclass(frozen=True)
class ReferenceFingerprints:
    """The executed work (by its names), the software and hardware that results depend on, and the fingerprints."""

    work: Mapping[str, str]
    software: Mapping[str, str]
    fingerprints: Mapping[str, str]

    @property
    def digest(self) -> str:
        """The SHA-256 of the contents: TrainCheck rejects a file that was changed."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def check_comparable(self, path: Path, work: Mapping[str, str], software: Mapping[str, str]) -> None:
        """Raise FingerprintsOfOthers if results on this device may differ without a fault."""
        here, there = {**work, **software}, {**self.work, **self.software}
        names = [name for name in here | there if here.get(name) != there.get(name)]
        if names:
            differences = [f"{name} {there.get(name, 'unknown')} (here {here.get(name, 'unknown')})" for name in names]
            raise FingerprintsOfOthers(path, ", ".join(differences))


def write_reference(reference: ReferenceFingerprints, path: Path) -> None:
    """Write the fingerprints to a file. Raises OutputError."""
    data = {"format": FORMAT, "version": VERSION, **asdict(reference), "digest": reference.digest}
    write_whole(path, (json.dumps(data, indent=1, sort_keys=True) + "\n").encode())


def read_reference(path: Path) -> ReferenceFingerprints:
    """Read fingerprints from a file. Raises FingerprintsUnreadable for a damaged file, and FingerprintsTooNew."""
    try:
        data = json.loads(read_bounded(path))
    except OSError as error:
        raise FingerprintsUnreadable(path, error.strerror or str(error)) from None
    except (ValueError, RecursionError):
        raise FingerprintsUnreadable(path, "it is not JSON") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise FingerprintsUnreadable(path, "it is of another kind")
    version = data.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise FingerprintsTooNew(path, version, VERSION)
    parts = [data.get(name) for name in ("work", "software", "fingerprints")]
    tables = [part for part in parts if isinstance(part, dict) and all(isinstance(text, str) for text in part.values())]
    if len(tables) < len(parts) or not tables[-1]:
        raise FingerprintsUnreadable(path, "parts of it are missing")
    reference = ReferenceFingerprints(*tables)
    if reference.digest != data.get("digest"):
        raise FingerprintsUnreadable(path, "it was changed since it was written")
    return reference


def check_replaceable_reference(path: Path) -> None:
    """Raise OtherFile if the file exists and holds something else."""
    if not path.exists() or (path.is_file() and path.stat().st_size == 0):
        return
    try:
        read_reference(path)
    except FingerprintsUnreadable as error:
        raise OtherFile(path, "a file of known fingerprints", "-o") from error
    except FingerprintsTooNew as error:
        raise OtherFile(path, "one that this TrainCheck has written", "-o") from error
