"""The example own_trainer, on geo, with trackers imported anew, which is when they read where they write.

python -m tests.engines.trl.tracked_run …
"""

import importlib
import runpy
import sys

from trl.extras import profiling

if __name__ == "__main__":
    for name in [name for name in sys.modules if name.partition(".")[0] in ("trackio", "wandb")]:
        del sys.modules[name]
    for name in ("trackio", "wandb"):
        setattr(profiling, name, importlib.import_module(name))
    runpy.run_module("tests.golden_own_trainer", run_name="__main__", alter_sys=True)
