"""Compares the parameters that the losses use with the parameters in the optimizers.

The autograd graph of a loss ends in one AccumulateGrad node for each leaf that it uses. Under DDP and torch.compile the
leaves are the model's own parameters too. Reentrant checkpointing hides part of the graph, and sharded or master weights are
not leaves of the graph. In these cases nothing is reported.
"""

import time
import weakref

from ..param_names import all_of_type, live, parameters_of
from . import Inspector
from .tensors import is_sharded, to_local, trainable_parameters

MAX_NODES = 100000
MAX_SECONDS = 0.25
STEPS = 3
STEPS_WITH_SEVERAL_OPTIMIZERS = 4
MIN_STEPS_FOR_PARTLY_UNUSED = 10
"""A layer may be dropped at random, or an expert may not be chosen. So it takes more steps to call some parameters unused
than to call all of them unused.
"""
FIRST_INTERVAL = 100
"""Steps until the second window. Each further window comes ten times later."""
GRAPH_GRADIENTS = "gradients from the graph"
"""Missing if something else than the backward pass sets gradients: a copy from other tensors, for example."""
OUTSIDE_GRAPH = "gradients reach the optimizer's tensors outside the visible graph"
MAX_CANDIDATES = 64
MAX_NAMES = 8


class GraphInspector(Inspector):
    name = "graph"

    def __init__(self, probe, names):
        super().__init__(probe)
        self._names = names
        self._used = {}  # id -> weak reference, for every leaf parameter that a loss used
        self._why_unseen = None
        self._every_backward_walked = True
        self._last_reported = None
        self._optimizers = 0
        self._next_window = FIRST_INTERVAL
        self._open_window()

    def _open_window(self):
        self._open = True
        self._is_outside_reported = False
        self._steps = 0
        self._walks = 0
        self._stepped = set()

    def is_unused(self, parameter):
        """Return True if every loss so far was walked and none uses the parameter. Its gradient, if any, was copied in."""
        is_complete = self._every_backward_walked and self._why_unseen in (None, OUTSIDE_GRAPH)
        return is_complete and bool(self._used) and id(parameter) not in self._used

    def backward_begins(self, loss, first):
        if not self._open or self._why_unseen:
            return
        budget = self.probe.budget
        if self._walks and not budget.allows(budget.expected(self.name)):
            self._every_backward_walked = False
            return
        with budget.spending(self.name):
            self._walks += 1
            leaves, self._why_unseen = find_leaves(loss)
            for leaf in leaves:
                if id(leaf) not in self._used:
                    self._used[id(leaf)] = weakref.ref(leaf)

    def step_begins(self, optimizer, is_primary):
        if not self._open:
            if is_primary and self._is_due_again(self.probe.step + 1):
                self._open_window()
            return
        self._stepped.add(id(optimizer))
        if is_primary and self._walks:
            self._steps += 1
            several = len(self.probe.optimizers) > 1
            if self._steps >= (STEPS_WITH_SEVERAL_OPTIMIZERS if several else STEPS):
                self._finish_window()

    def _is_due_again(self, step):
        if step - self.probe.first_step >= self._next_window:
            self._next_window *= 10
            return True
        return step & 15 == 0 and len(self.probe.optimizers) != self._optimizers

    def _finish_window(self):
        optimizers = list(self.probe.optimizers)
        optimized = {id(p): p for p in trainable_parameters(*optimizers)}
        used = {id(leaf): leaf for leaf in live(self._used.values())}
        stepped = trainable_parameters(*(optimizer for optimizer in optimizers if id(optimizer) in self._stepped))
        unused = [p for p in stepped if id(p) not in used]
        some_unused = unused and len(unused) < len(stepped)
        too_early = some_unused and self._steps < MIN_STEPS_FOR_PARTLY_UNUSED
        if too_early and self._is_outside_reported:
            return
        self._open = too_early
        self._optimizers = len(optimizers)
        why = self._why_unseen or why_not_comparable(optimized.values(), used.values())
        if why:
            self._open = False
            self.probe.miss(self.name, why)
            return
        outside = [p for key, p in used.items() if key not in optimized and _is_parameter(self.probe.torch, p)]
        if outside:
            # An optimizer may not have stepped yet: that of a discriminator that starts later.
            pending = set(map(id, parameters_of(*all_of_type(self.probe.torch.optim.Optimizer))))
            outside = [p for p in outside if id(p) not in pending]
        if too_early and not outside:
            return
        self._is_outside_reported = too_early
        in_eval = count_in_eval(self.probe.torch, outside)
        # A parameter outside all optimizers stays outside. A parameter that is unused so far may still be used later.
        surely_unused = [] if too_early else unused
        counts = (len(used), len(optimized), len(outside), in_eval, len(surely_unused))
        # A report may wait for a device, and the model may be deleted by then.
        named = [[weakref.ref(p) for p in parameters[:MAX_NAMES]] for parameters in (outside, surely_unused)]
        self._check_gradients_of(unused, lambda: self._report(counts, *named))

    def _check_gradients_of(self, unused, report):
        """Call `report` unless a parameter that no graph reached has a gradient: then the graph proves nothing."""
        torch = self.probe.torch
        with torch.no_grad():
            gradients = [to_local(p.grad) for p in unused[:MAX_CANDIDATES] if p.grad is not None]
            gradients = [g for g in gradients if g.layout == torch.strided and g.numel()]
            if not gradients:
                report()
                return
            largest = torch.stack([g.abs().amax().to("cpu" if g.is_cpu else g.device).float() for g in gradients])

        def handle_gradients(values):
            if not any(value != 0 for value in values):
                report()
            elif self._every_backward_walked:
                self._why_unseen = OUTSIDE_GRAPH
                self.probe.miss(self.name, OUTSIDE_GRAPH)
                self.probe.miss(GRAPH_GRADIENTS, OUTSIDE_GRAPH)
            else:
                self.probe.miss(self.name, "the budget did not allow walking the graph of every backward")

        self.probe.scalars.later(largest, handle_gradients)

    def _report(self, counts, outside, unused):
        self.probe.see(self.name)
        self.probe.see(GRAPH_GRADIENTS)
        if counts == self._last_reported:
            return
        self._last_reported = counts
        self.probe.emit(
            "graph",
            step=self.probe.step + 1,
            used=counts[0],
            held=counts[1],
            used_not_held=self._names.several(live(outside), MAX_NAMES),
            held_not_used=self._names.several(live(unused), MAX_NAMES),
            outside=counts[2],
            outside_in_eval=counts[3],
            unused=counts[4],
        )


def count_in_eval(torch, tensors):
    """Return how many of these parameters belong to modules in evaluation mode."""
    wanted = {id(tensor) for tensor in tensors}
    found = set()
    for module in all_of_type(torch.nn.Module) if wanted else ():
        if not module.__dict__.get("training", True):
            found.update(wanted.intersection(map(id, (module.__dict__.get("_parameters") or {}).values())))
    return len(found)


def find_leaves(loss):
    """Return the leaf tensors that one or more losses depend on, and the reason why the list may be incomplete, or None."""
    roots = loss if type(loss) in (list, tuple) else (loss,)
    pending = [root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None]
    seen = set(pending)
    leaves = []
    deadline = time.perf_counter() + MAX_SECONDS
    while pending:
        node = pending.pop()
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            leaves.append(node.variable)
            continue
        if "Checkpoint" in kind or hasattr(node, "run_function"):
            return leaves, "reentrant checkpointing (%s) hides part of the graph" % kind
        for previous, _ in node.next_functions:
            if previous is not None and previous not in seen:
                seen.add(previous)
                pending.append(previous)
        if len(seen) > MAX_NODES or (len(seen) & 255 == 0 and time.perf_counter() > deadline):
            return leaves, "the graph is too large to walk (over %d nodes)" % len(seen)
    return leaves, None


def why_not_comparable(optimized, used):
    """Return why the leaves of the graph differ from the optimizer's parameters by design, or None."""
    if any(is_sharded(p) for p in optimized):
        return "parameters are sharded (DTensor): the graph ends in gathered copies"
    if any(type(p).__name__ == "FlatParameter" for p in used):
        return "parameters are views of a flat parameter (FSDP)"
    return None


def _is_parameter(torch, tensor):
    """Return whether a leaf is a Parameter. Other leaves are inputs that require a gradient."""
    return issubclass(type(tensor), torch.nn.Parameter) or getattr(tensor, "_is_param", False)
