import copy
import gc

import torch

from holdfast.child.holdfast_child.looks import modules


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)


def test_modules_are_noted_when_made_and_when_copied():
    """A deep copy is loaded from a state, and never passes through __init__."""
    modules.watch(torch)
    made = Outer()
    copied = copy.deepcopy(made)
    noted = {id(module) for module in modules.living()}
    assert {id(made), id(made.inner), id(copied), id(copied.inner)} <= noted


def test_noting_keeps_nothing_alive():
    modules.watch(torch)
    made = Outer()
    kept = id(made)
    del made
    gc.collect()
    assert kept not in {id(module) for module in modules.living() if type(module) is Outer}


def test_watching_twice_wraps_once():
    """The methods are wrapped once a process."""
    modules.watch(torch)
    once = torch.nn.Module.__init__
    modules.watch(torch)
    assert torch.nn.Module.__init__ is once
