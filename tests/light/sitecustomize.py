"""Trainings under test do without torch's compiler until they ask for it.

An optimizer's first step imports it, for a call that does nothing outside of a compiled function; that takes longer than all
the rest of such a training.
"""

import importlib
import importlib.machinery
import sys
import types


class Compiler(types.ModuleType):
    """Stands in for `torch._dynamo`; what it does not have is asked of the real one, which takes its place from then on."""

    @staticmethod
    def graph_break(msg=""):
        pass

    @staticmethod
    def disable(function=None, *_, **__):
        return function if function is not None else lambda decorated: decorated

    def __getattr__(self, name):
        if name.startswith("__") and name != "__path__":  # which is asked for when a module inside it is imported
            raise AttributeError(name)
        if sys.modules.get("torch._dynamo") is self:
            del sys.modules["torch._dynamo"]
        return getattr(importlib.import_module("torch._dynamo"), name)


_stand_in = Compiler("torch._dynamo")
_stand_in.__spec__ = importlib.machinery.ModuleSpec("torch._dynamo", None)
_stand_in.__spec__._initializing = True  # whoever waits for the real one goes on waiting
sys.modules["torch._dynamo"] = _stand_in
