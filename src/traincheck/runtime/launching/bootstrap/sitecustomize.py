"""Attaches TrainCheck to this Python process, then imports the `sitecustomize` that this file shadows.

See Note [Children attach themselves] in traincheck/runtime/launching/child_processes.py. This code must never fail: it
runs at the start of every Python process of a run, also in interpreters without TrainCheck.
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

        # Without torch there is nothing to observe, so no warning is necessary.
        if importlib.util.find_spec("torch") is not None:
            _reason = "it has no traincheck" if getattr(_error, "name", "") == "traincheck" else repr(_error)
            sys.stderr.write("traincheck: processes of %s are not observed: %s\n" % (sys.executable, _reason))  # noqa: UP031
    except Exception:
        pass

# The last line imports the shadowed module, or fails as in a Python without any, which `site` expects.
# In both cases the process has the same `sitecustomize` as without TrainCheck.
sys.modules.pop("sitecustomize", None)
__import__("sitecustomize")
