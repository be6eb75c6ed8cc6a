"""Lets the torchvision wheel of PyPI be imported with a CPU build of torch.

Its compiled operators link against the CUDA build, so that they cannot be loaded and the import fails where fakes for
two of them are registered. This package defines the schemas that are missing, and then becomes the installed
torchvision. Programs that call such an operator fail as they would without it.
"""

import importlib.machinery
import os
import sys

import torch

_HERE = os.path.realpath(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120
_ELSEWHERE = [entry for entry in sys.path if os.path.realpath(entry or ".") != _HERE]
_REAL = importlib.machinery.PathFinder.find_spec("torchvision", _ELSEWHERE)
if _REAL is None or _REAL.origin is None:
    raise ModuleNotFoundError("torchvision is not installed in this environment", name="torchvision")


if torch.version.cuda is None and not hasattr(torch.ops.torchvision, "nms"):
    _SCHEMAS = torch.library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _SCHEMAS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

__spec__ = _REAL
__file__ = _REAL.origin
__path__ = _REAL.submodule_search_locations
with open(__file__, encoding="utf-8") as _source:  # noqa: PTH123
    exec(compile(_source.read(), __file__, "exec"))
