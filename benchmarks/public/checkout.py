"""Copies of public programs: the files of the pinned commit, with our edits and generated data."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.public.programs import Edit, Program

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "https://github.com/{repository}.git"


class Missing(Exception):
    """A requirement of a program is missing, or differs from the list."""


def checkout(source: Path, program: Program) -> Path:
    """The folder of the program's repository below `source`, cloned if it is missing.

    Raises Missing if cloning fails, or if the pinned commit does not exist.

    """
    home = source / program.repository
    address = ADDRESS.format(repository=program.repository)
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        cloned = _git(["clone", "--quiet", "--filter=blob:none", "--no-checkout", address, str(home)])
        if cloned.returncode:
            shutil.rmtree(home, ignore_errors=True)
            raise Missing(
                f"{home} is missing, and `git clone {address}` failed: {_last_line(cloned)}. "
                f"Put a clone there that contains commit {program.commit}"
            )
    if _git(["-C", str(home), "cat-file", "-e", f"{program.commit}^{{commit}}"]).returncode:
        fetched = _git(["-C", str(home), "fetch", "--quiet", address, program.commit])
        if fetched.returncode:
            raise Missing(
                f"{home} does not contain commit {program.commit}, and it cannot be fetched: run git fetch there"
            )
    return home


def generate(program: Program, into: Path) -> None:
    """Generate the program's data into the folder `into`, with the layout of a copy. Raises Missing on failure.

    A separate process does this, because the memory of this process would count for the programs that it starts.

    """
    shutil.rmtree(into, ignore_errors=True)
    (into / program.folder).mkdir(parents=True)
    for entry in program.data:
        target = into / program.folder / entry.into
        words = [
            sys.executable,
            "-m",
            "benchmarks.public.data",
            entry.make,
            str(target),
            json.dumps(entry.options or {}),
        ]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, check=False)
        if done.returncode:
            raise Missing(f"{program.id}: {entry.make} failed to generate {entry.into}: {_last_line(done)}")


def lay_out(home: Path, program: Program, into: Path, generated: Path) -> Path:
    """Write the program's files at its commit into the folder `into`, edit them and add the data from `generated`.

    Returns its working folder. Files whose content the clone lacks (large ones of a partial clone without a network)
    are left out; generated data replaces them, or the program fails. Raises Missing if the commit has none of the
    files, or an edit does not apply.
    """
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    paths = program.copy or (program.folder,)
    listed = _git(["-C", str(home), "ls-tree", "-r", "-z", "--full-tree", program.commit, "--", *_pathspecs(paths)])
    if listed.returncode:
        raise Missing(f"{program.id}: git ls-tree failed in {home}: {_last_line(listed)}")
    entries = [entry.split("\t", 1) for entry in listed.stdout.decode().split("\0") if entry]
    blobs = [(about.split()[2], about.split()[0], path) for about, path in entries if about.split()[1] == "blob"]
    if not blobs:
        raise Missing(f"{program.id}: commit {program.commit} of {program.repository} has no {', '.join(paths)}")
    _write(home, blobs, into)
    work = into / program.folder
    for edit in program.edits:
        apply(edit, work, program.id)
    shutil.copytree(generated, into, dirs_exist_ok=True)
    return work


def apply(edit: Edit, work: Path, name: str) -> None:
    """Apply an edit to a copy. Raises Missing if its text does not occur exactly as often as listed."""
    path = work / edit.file
    if not path.is_file():
        raise Missing(f"{name}: an edit is for {edit.file}, which is not in the copy")
    text = path.read_bytes().decode("utf-8")
    count = text.count(edit.find)
    if count != edit.times:
        raise Missing(f"{name}: an edit finds {edit.find!r} {count} times in {edit.file} instead of {edit.times}")
    path.write_bytes(text.replace(edit.find, edit.replace).encode("utf-8"))


def _pathspecs(paths: tuple[str, ...]) -> list[str]:
    return [] if "." in paths else list(paths)


def _write(home: Path, blobs: list[tuple[str, str, str]], into: Path) -> None:
    """Write the content of the blobs (digest, mode, path)."""
    process = subprocess.Popen(
        ["git", "-C", str(home), "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        for digest, mode, path in blobs:
            process.stdin.write(f"{digest}\n".encode())
            process.stdin.flush()
            head = process.stdout.readline().decode().split()
            if not head or head[-1] == "missing":
                continue
            content = process.stdout.read(int(head[2]))
            process.stdout.read(1)
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if mode == "120000":
                target.symlink_to(content.decode())
            else:
                target.write_bytes(content)
        process.stdin.close()


def _git(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", *words], capture_output=True, check=False)


def _last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
