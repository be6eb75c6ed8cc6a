"""Trains a little and ends in the given way: `python odd_end.py WAY FILE`, with a digest of the training in FILE."""

import faulthandler
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from odd_ways import net, train


def nested(file):
    """Starts programs that train, in several ways."""
    script = [str(Path(__file__).resolve()), "code", file + "-1"]
    codes = [subprocess.run([sys.executable, *script]).returncode]
    line = f"{sys.executable} {script[0]} code {file}-2; exit 5"
    codes.append(subprocess.run(["bash", "-c", line]).returncode)
    return codes


def observed_inside(file):
    """A program that imports traincheck itself."""
    import traincheck

    with traincheck.observe(f"{file}-run"):
        train()
    command = [
        sys.executable,
        "-m",
        "traincheck",
        "collect",
        "-o",
        f"{file}-own",
        str(Path(__file__).resolve()),
        "code",
    ]
    return subprocess.run([*command, f"{file}-3"], stderr=subprocess.DEVNULL).returncode


def raises():
    model = net()
    model[0].register_forward_pre_hook(lambda *_: {}["mine"])
    train(model)


def main():
    way, file = sys.argv[1:]
    text = train()
    if way == "nested":
        text += str(nested(file)) + str(observed_inside(file))
    Path(file).write_text(text)
    if way == "code":
        sys.exit(7)
    elif way == "words":
        sys.exit("words of its own")
    elif way == "raises":
        raises()
    elif way == "at once":
        os._exit(9)
    elif way == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "ended":
        faulthandler.enable()
        os.kill(os.getpid(), signal.SIGTERM)
    elif way == "daemon":
        sys.excepthook = lambda *error: os._exit(11)
        over = threading.Event()
        threading.Thread(target=over.wait, daemon=True).start()
        raise ValueError
    elif way == "no stderr":
        os.close(2)
        sys.stderr = None


if __name__ == "__main__":
    main()
