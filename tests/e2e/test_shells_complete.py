"""The completion key completes TrainCheck commands in each supported shell."""

from __future__ import annotations

import os
import pty
import select
import shutil
import sys
import time
from pathlib import Path

import pytest

PATIENCE = 60.0
TYPED = "traincheck doct\t--hel\t\r"
"""Becomes `traincheck doctor --help`."""
SET_UP = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        "eval \"$(_TRAINCHECK_COMPLETE=source_bash traincheck)\"; echo re''ady\r",
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -Uz compinit; compinit -u -D; eval \"$(_TRAINCHECK_COMPLETE=source_zsh traincheck)\"; echo re''ady\r",
    ),
    "fish": (["fish", "--no-config", "-i"], "_TRAINCHECK_COMPLETE=source_fish traincheck | source; echo re''ady\r"),
}


class Terminal:
    """A shell at a terminal."""

    def __init__(self, words: list[str], home: Path) -> None:
        self.shown = ""
        self.process, self.screen = pty.fork()
        if self.process == 0:
            os.chdir(home)
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            environ = {
                **os.environ,
                "PATH": path,
                "HOME": str(home),
                "TERM": "dumb",
                "PS1": "$ ",
                "INPUTRC": "/dev/null",
            }
            os.execvpe(words[0], words, environ)

    def type(self, text: str) -> None:
        """Type it."""
        os.write(self.screen, text.encode())

    def shows(self, text: str) -> bool:
        """Wait until it is on the screen."""
        deadline = time.monotonic() + PATIENCE
        while text not in self.shown and time.monotonic() < deadline:
            if select.select([self.screen], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self.screen, 65536).decode(errors="replace")
                except OSError:
                    break
        return text in self.shown

    def close(self) -> None:
        """End the shell."""
        os.close(self.screen)
        os.waitpid(self.process, 0)


@pytest.mark.slow
@pytest.mark.parametrize("shell", SET_UP)
def test_typed_words_are_completed(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    words, set_up = SET_UP[shell]
    terminal = Terminal(words, tmp_path)
    try:
        terminal.type(set_up)
        assert terminal.shows("ready"), terminal.shown
        terminal.type(TYPED)
        assert terminal.shows("Exit codes:"), terminal.shown
    finally:
        terminal.close()
