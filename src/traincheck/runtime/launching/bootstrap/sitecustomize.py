"""Attaches TrainCheck to this Python process, then gives way to the `sitecustomize` that this file shadows.

See Note [Children attach themselves] in traincheck/runtime/launching/child_processes.py. Nothing here may fail: it runs
at the start of every Python process of a run, also in interpreters that have no TrainCheck.
"""

import os
import sys

_here = __file__.rpartition(os.sep)[0]
sys.path[:] = [entry for entry in sys.path if entry != _here]
sys.path_importer_cache.pop(_here, None)

try:
    from traincheck.runtime.launching import child_processes

    child_processes.attach()
except Exception as _error:
    try:
        import importlib.util

        # An interpreter without torch has nothing to be observed, so there is nothing to be said about it either.
        if importlib.util.find_spec("torch") is not None:
            _reason = "it has no traincheck" if getattr(_error, "name", "") == "traincheck" else repr(_error)
            sys.stderr.write("traincheck: processes of %s are not observed: %s\n" % (sys.executable, _reason))  # noqa: UP031
    except Exception:
        pass

# With this module out of the way the next line finds the shadowed one, or fails as it does in a Python without any,
# which `site` expects: either way the process is left with the `sitecustomize` it would have had without us.
sys.modules.pop("sitecustomize", None)
__import__("sitecustomize")
