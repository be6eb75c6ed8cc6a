"""Brings a silent error of a package back, and writes the processor times of training steps.

Python imports this file at start-up, because its folder is on PYTHONPATH.
STACKS_EDITS: a JSON list of edits, each with `module`, `find` and `replace`. When Python imports the module, the text
is replaced in its source; the installed file stays as it is. STACKS_TIMES: a file that gets the processor
time of this process at each optimizer step, when the process ends.
"""

import atexit
import json
import os
import sys
import time
from importlib.machinery import PathFinder, SourceFileLoader

import without_cuda


class EditedSource(SourceFileLoader):
    """Loads a module from its file, with edits of the text, without the cache of compiled modules."""

    edits = ()

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        source = self.get_data(path).decode("utf-8")
        for edit in self.edits:
            count = source.count(edit["find"])
            if count != 1:
                sys.stderr.write(
                    f"stacks: {path} has {count} times, not once, the text of an edit:\n{edit['find']}\n"
                    "Use the versions of benchmarks/stacks/requirements.txt, or adapt the edit.\n"
                )
                os._exit(70)
            source = source.replace(edit["find"], edit["replace"])
        return compile(source, path, "exec", dont_inherit=True)


class Finder:
    """Finds the edited modules, and calls functions after others have been imported."""

    def __init__(self, edits, after):
        self.edits, self.after = edits, after

    def find_spec(self, fullname, path=None, target=None):
        """Return the usual spec of the module with our loader, or None for other modules."""
        if fullname not in self.edits and fullname not in self.after:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None:
            return None
        if fullname in self.edits:
            spec.loader = EditedSource(fullname, spec.origin)
            spec.loader.edits = self.edits[fullname]
        if fullname in self.after:
            run, execute = self.after[fullname], spec.loader.exec_module

            def exec_module(module):
                execute(module)
                run(module)

            spec.loader.exec_module = exec_module
        return spec


def write_times(optimizer_module, path):
    """Note the processor time at each optimizer step, and write all of them when this process ends."""
    times, process = [], os.getpid()
    optimizer_module.register_optimizer_step_post_hook(lambda *_: times.append(time.process_time()))

    def write():
        if os.getpid() == process and times:
            own = f"{path}.{process}"  # ranks end at the same time; one of the files stays
            with open(own, "w") as file:  # noqa: PTH123 - at start-up, imports cost time
                json.dump(times, file)
            os.replace(own, path)  # noqa: PTH105

    atexit.register(write)


def install():
    """Put our finder before the others, for what the environment asks and for packages that expect CUDA."""
    edits = {}
    for edit in json.loads(os.environ.get("STACKS_EDITS") or "[]"):
        edits.setdefault(edit["module"], []).append(edit)
    after, path = dict(without_cuda.AFTER), os.environ.get("STACKS_TIMES")
    if path:
        after["torch.optim.optimizer"] = lambda module: write_times(module, path)
    sys.meta_path.insert(0, Finder(edits, after))


install()
