"""Checkpoints in several files: no file larger than asked for, and an index that says where each tensor is."""

import json
from pathlib import Path

import torch


def own_copy(tensor):
    """A copy with a storage of its own, so that a view of a large tensor does not drag all of it into the file."""
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.shape).clone()


def split(state_dict, max_bytes):
    """Names in groups whose tensors together stay below the limit, in the order of the state."""
    groups, size = [[]], 0
    for name, tensor in state_dict.items():
        if groups[-1] and size + tensor.nbytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += tensor.nbytes
    return groups


def save_sharded(state_dict, folder, max_bytes=2**20):
    """Write a state to files in a folder, which is made; returns their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    groups = split(state_dict, max_bytes)
    index, paths = {}, []
    for number, names in enumerate(groups, 1):
        path = folder / f"model-{number:03d}-of-{len(groups):03d}.pt"
        torch.save({name: own_copy(state_dict[name]) for name in names}, path)
        index.update(dict.fromkeys(names, path.name))
        paths.append(path)
    (folder / "index.json").write_text(json.dumps(index, indent=1))
    return paths


def load_sharded(folder):
    """The state that `save_sharded` wrote to a folder."""
    index = json.loads((Path(folder) / "index.json").read_text())
    shards = {file: torch.load(Path(folder) / file, weights_only=True) for file in sorted(set(index.values()))}
    return {name: shards[file][name] for name, file in index.items()}
