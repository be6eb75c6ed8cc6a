"""python -m benchmarks.public.data FUNCTION PATH OPTIONS: data in the file formats that public programs read.

Each function writes to a path, from a fixed seed; the options are a JSON object of its keyword arguments.
"""

from __future__ import annotations

import gzip
import json
import pickle
import struct
import sys
from pathlib import Path

import numpy as np

from benchmarks.public.models import tiny_transformer
from benchmarks.public.words import sentences

__all__ = ["tiny_transformer"]


def _digits(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits of scikit-learn as bytes, enlarged to `size` by `size`, with their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    scale = -(-size // 8)
    images = np.kron(digits.images * 15.9, np.ones((scale, scale))).astype(np.uint8)
    return images[:, :size, :size], digits.target.astype(np.uint8)


def mnist_idx(path: Path, train: int = 1200, test: int = 400) -> None:
    """The four files of MNIST, uncompressed, as torchvision.datasets.MNIST finds them in ROOT/MNIST/raw."""
    images, labels = _digits(28)
    path.mkdir(parents=True)
    for name, part in (("train", slice(0, train)), ("t10k", slice(train, train + test))):
        chosen, kinds = images[part], labels[part]
        head = struct.pack(">IIII", 2051, len(chosen), 28, 28)
        (path / f"{name}-images-idx3-ubyte").write_bytes(head + chosen.tobytes())
        (path / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, len(kinds)) + kinds.tobytes())


def cifar10(path: Path, batch: int = 100) -> None:
    """The folder cifar-10-batches-py with `batch` coloured digits a file."""
    images, labels = _digits(32)
    path.mkdir(parents=True)
    tints = np.random.default_rng(0).uniform(0.4, 1.0, size=(len(images), 3))
    rows = (images[:, None] * tints[:, :, None, None]).astype(np.uint8).reshape(len(images), -1)
    for number, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        part = slice(number * batch, (number + 1) * batch)
        entry = {"data": rows[part], "labels": [int(label) for label in labels[part]]}
        (path / name).write_bytes(pickle.dumps(entry, protocol=2))
    names = {"label_names": [str(number) for number in range(10)]}
    (path / "batches.meta").write_bytes(pickle.dumps(names, protocol=2))


def image_folder(path: Path, classes: int = 2, per_class: int = 8, size: int = 64, suffix: str = "jpg") -> None:
    """A folder for each class, with images in it; with `classes` 0, the images lie in `path` itself."""
    from PIL import Image

    images, labels = _digits(size)
    random = np.random.default_rng(0)
    for kind in range(max(1, classes)):
        folder = path / f"class{kind}" if classes else path
        folder.mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images[labels == kind][:per_class]):
            noise = random.integers(0, 60, size=(size, size, 3))
            pixels = np.clip(image[:, :, None] * [0.9, 0.7, 0.5] + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number:04}.{suffix}")


def text_file(path: Path, lines: int = 400, words: int = 12, seed: int = 0, opening: str = "") -> None:
    """Lines of random words, after an opening; compressed if the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join([opening, *sentences(lines, words, seed)]).lstrip() + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def json_lines(path: Path, count: int = 64, columns: dict[str, int] | None = None, seed: int = 0) -> None:
    """Write JSON lines. The value of a column is its number of words, 0 for a label, or -1 for the row number."""
    random = np.random.default_rng(seed)
    word_counts = columns or {"text": 12}
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(count):
        row: dict[str, object] = {}
        for offset, (name, words) in enumerate(word_counts.items()):
            text = sentences(1, max(1, words), seed * 1000 + number * 17 + offset)[0]
            row[name] = text if words > 0 else number if words else int(random.integers(2))
        rows.append(json.dumps(row))
    path.write_text("\n".join(rows) + "\n")


def cora(path: Path, nodes: int = 1700, features: int = 60, classes: int = 7) -> None:
    """A citation graph in the format of Cora: cora.content and cora.cites."""
    random = np.random.default_rng(0)
    path.mkdir(parents=True, exist_ok=True)
    kinds = random.integers(classes, size=nodes)
    likely = random.uniform(0.05, 0.4, size=(classes, features))
    words = (random.random((nodes, features)) < likely[kinds]).astype(int)
    content = (f"{100 + node}\t" + "\t".join(map(str, words[node])) + f"\tkind{kinds[node]}" for node in range(nodes))
    (path / "cora.content").write_text("\n".join(content) + "\n")
    pairs = set()
    for node in range(nodes):
        same = np.flatnonzero(kinds == kinds[node])
        pairs |= {(100 + int(other), 100 + node) for other in random.choice(same, size=3) if other != node}
    (path / "cora.cites").write_text("\n".join(f"{source}\t{other}" for source, other in sorted(pairs)) + "\n")


def tar_of(path: Path, folder: str) -> None:
    """An archive of the folder next to it, which was generated before."""
    import tarfile

    with tarfile.open(path, "w:gz") as archive:
        archive.add(path.parent / folder, arcname=folder)


def ratings(path: Path, users: int = 60, items: int = 90, count: int = 3000) -> None:
    """Ratings in the format of MovieLens: user, item, rating and time, separated by double colons."""
    random = np.random.default_rng(0)
    taste, kind = random.normal(size=(users, 3)), random.normal(size=(items, 3))
    lines = []
    for number in range(count):
        user, item = int(random.integers(users)), int(random.integers(items))
        stars = int(np.clip(round(3.3 + taste[user] @ kind[item]), 1, 5))
        lines.append(f"{user + 1}::{item + 1}::{stars}::{978300000 + number}")
    path.write_text("\n".join(lines) + "\n")


def json_file(path: Path, content: dict[str, object] | None = None) -> None:
    """Write a JSON object, for configurations."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content or {}))


def masks(path: Path, count: int = 12, size: int = 64) -> None:
    """Images of which each pixel is 0 or 255, by the names of those of `image_folder`."""
    from PIL import Image

    images, _ = _digits(size)
    path.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(images[:count]):
        Image.fromarray(np.where(image > 100, 255, 0).astype(np.uint8)).save(path / f"{number:04}.png")


def named_images(path: Path, classes: int = 3, per_class: int = 20, size: int = 64) -> None:
    """Images in one folder, whose names begin with their class: kind0_3.jpg."""
    image_folder(path / "sorted", classes, per_class, size)
    for number, file in enumerate(sorted((path / "sorted").rglob("*.jpg"))):
        file.rename(path / f"kind{file.parent.name[-1]}_{number}.jpg")


if __name__ == "__main__":
    target = Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    globals()[sys.argv[1]](target, **json.loads(sys.argv[3]))
