"""Finds the function of the project that a call of torch is made for, and the function of a library in between."""

from __future__ import annotations

import re
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import handle_torch_function

import traincheck.sources
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.call_sites import MAX_CODE_OBJECTS, qualified_name
from traincheck.sources.recording.frames import local_values
from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.bounded_cache import ObjectCache

_TORCH = str(Path(torch.__file__).parent)
_PASSED_OVER = (str(Path(traincheck.sources.__file__).parents[1]), f"{_TORCH}/_dynamo/")
"""Folders with wrappers of functions, which depend on what is observed."""
_OBSERVED_BY_OTHERS = tuple(
    f"{_TORCH}/{path}" for path in ("utils/data/", "optim/optimizer.py", "autograd/", "_tensor.py")
)
"""Files with functions that other sources observe: loaders, optimizers, backwards."""
_MODULE_CALLS = ("Module._wrapped_call_impl", "Module._call_impl")
_NO_LINE = "-"
"""Stands for a function of a library that is no line, and in which nothing else is one."""
_LOCAL = "<locals>"
_COMPREHENSION = re.compile(r"\.<locals>\.<(list|dict|set)comp>")
"""Since Python 3.12, a comprehension is part of the function around it."""
MAX_PARAMETERS = 1_000
"""Parameters in a list whose models are looked up."""
_HANDLER = handle_torch_function.__code__


class FunctionOwners:
    """Looks for the owner of a call in the frames around it."""

    def __init__(self, recorder: Recorder, catalog: VariableCatalog) -> None:
        self._recorder = recorder
        self._catalog = catalog
        self._owners: ObjectCache[str] = ObjectCache(MAX_CODE_OBJECTS)
        self._libraries: ObjectCache[str] = ObjectCache(MAX_CODE_OBJECTS)

    def find(self, frame: Any) -> tuple[str, str]:
        """The function of the project that the call in `frame` is made for, as `train.evaluate`, and the function of a
        library that it calls for that, with the modules and parameters that it got (empty for a direct call).

        Both are empty for a call that no line shows.
        """
        if frame is not None and frame.f_code is _HANDLER:
            frame = frame.f_back  # the function itself
            frame = frame.f_back if frame is not None else None
        sites, library, direct = self._recorder.sites, "", True
        called: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            file = sites.file_of(code)
            if file:
                if library == _NO_LINE or not (direct or library):
                    return "", ""
                if library and sites.above(frame) == self._recorder.fetch_site:
                    return "", ""
                return self._name_of(code, file), f"{library}{self._arguments_of(called)}" if called else ""
            direct = False
            if library != _NO_LINE:
                name = self._library_function(code)
                library, called = (name, frame) if name else (library, called)
            frame = frame.f_back
        return "", ""

    def _library_function(self, code: Any) -> str:
        """The name of a function of a library; empty for a wrapper, `_NO_LINE` for one that others observe."""
        name = self._libraries.get(id(code))
        if name is None:
            name = qualified_name(code)
            if code.co_filename.startswith(_OBSERVED_BY_OTHERS) or name in _MODULE_CALLS:
                name = _NO_LINE
            elif code.co_filename.startswith(_PASSED_OVER) or _LOCAL in name:
                name = ""
            self._libraries.put_for(code, name)
        return name

    def _name_of(self, code: Any, file: str) -> str:
        owner = self._owners.get(id(code))
        if owner is None:
            name = _COMPREHENSION.sub("", qualified_name(code))
            stem = file.rpartition("/")[2].removesuffix(".py")
            owner = self._owners.put_for(code, name if stem.startswith("In[") else f"{stem}.{name}")
        return owner

    def _arguments_of(self, frame: FrameType) -> str:
        """The modules and parameters that a function of a library got, as the end of a line: their classes, or their
        names in another one of them, and the models of the parameters."""
        code = frame.f_code
        values = local_values(frame, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]).values()
        modules = [value for value in values if isinstance(value, torch.nn.Module)]
        children = {
            id(child): f"{type(module).__name__}.{name}"
            for module in modules
            for name, child in module.__dict__.get("_modules", {}).items()  # none before its __init__ has run
        }
        names = [children.get(id(module), type(module).__name__) for module in modules]
        names += [f"parameters of {model}" for value in values for model in self._models_of(value)]
        return f" <- {', '.join(names)}" if names else ""

    def _models_of(self, value: Any) -> list[str]:
        """The models of some parameters, such as those that are clipped."""
        if type(value) not in (list, tuple) or not (value and isinstance(value[0], torch.nn.Parameter)):
            return []
        self._catalog.refresh_holders()
        found = (self._catalog.find(tensor) for tensor in value[:MAX_PARAMETERS] if isinstance(tensor, torch.Tensor))
        return sorted({variable.name.partition(".")[0].partition("#")[0] for variable in found if variable is not None})
