"""Runs a training script as it is, then prints its output and a hash of every parameter and buffer that it built.

    python hashing.py REPLACEMENTS script.py [arguments]

REPLACEMENTS is a JSON object of texts to replace in the script (to make it short); "{}" leaves it alone.
"""

import hashlib
import json
import runpy
import sys
import tempfile
from pathlib import Path

import torch


def main() -> None:
    replacements, script, *arguments = sys.argv[1:]
    text = Path(script).read_text(encoding="utf-8")
    for old, new in json.loads(replacements).items():
        assert text.count(old) == 1, f"{old!r} is not in {script} once"
        text = text.replace(old, new)
    sys.argv = [script, *arguments]
    modules: list[torch.nn.Module] = []
    original = torch.nn.Module.__init__

    def keep(self, *args, **kwargs):
        original(self, *args, **kwargs)
        modules.append(self)

    torch.nn.Module.__init__ = keep
    with tempfile.TemporaryDirectory() as folder:
        short = Path(folder, Path(script).name)
        short.write_text(text, encoding="utf-8")
        runpy.run_path(str(short), run_name="__main__")
    tensors = {id(tensor): tensor for module in modules for tensor in module.state_dict().values()}
    gradients = {id(p.grad): p.grad for module in modules for p in module.parameters() if p.grad is not None}
    digests = sorted(
        hashlib.sha256(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        for tensor in (*tensors.values(), *gradients.values())
    )
    whole = hashlib.sha256("".join(digests).encode()).hexdigest()
    print(f"HASH {len(digests)} {whole} {torch.rand(1).item()!r}")


if __name__ == "__main__":
    main()
