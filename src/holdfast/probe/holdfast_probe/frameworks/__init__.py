"""The parts of training frameworks that run inside a training: what a framework knows and torch does not (loss components,
metrics, epochs, checkpoints).

Each is the package `holdfast/frameworks/<name>/probe/<name>`; here it becomes `holdfast_probe.frameworks.<name>`, so that
`from ...` means `holdfast_probe` in it. It imports nothing else. Its functions are all optional:

install(probe)                  called when torch is imported; waits until the training itself imports the framework
begin_dry_run()                 called before any of the user's code runs: stop what writes or reports outside the run
override_loaders(override)      called when torch is imported in a dry run, with its `LoaderOverride`
"""

import os
import pkgutil
from importlib import import_module

_FOLDER = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "..", "frameworks"))
__path__ += [os.path.join(_FOLDER, name, "probe") for name in sorted(os.listdir(_FOLDER))]


def call(function, *args):
    """Call the function of this name in each part that has it."""
    for part in pkgutil.iter_modules(__path__):
        module = import_module("." + part.name, __name__)
        if hasattr(module, function):
            getattr(module, function)(*args)
