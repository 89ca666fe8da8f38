"""Which parameters the losses use, against which the optimizers hold.

The autograd graph behind a loss ends in one AccumulateGrad node for each leaf that it uses. Under DDP and torch.compile
the leaves are the model's own parameters too. Reentrant checkpointing hides what lies behind it, and sharded or master
weights are not the leaves of the graph; there nothing is claimed.
"""

import time
import weakref

from ..param_names import all_of_type
from . import Inspector
from .tensors import is_sharded, local, trainable

MAX_NODES = 100000
MAX_SECONDS = 0.25
STEPS = 3
STEPS_WITH_SEVERAL_OPTIMIZERS = 4
STEPS_BEFORE_CALLING_SOME_UNUSED = 10
"""A layer may be dropped at random, an expert not chosen: some unused parameters need more steps than all unused."""
AGAIN_AFTER = 100
"""The second window, in steps; each further one ten times later."""
ANOTHER_WAY = "gradients reach the optimizer's tensors outside of the visible graph"
MAX_CANDIDATES = 64
MAX_NAMES = 8


class GraphInspector(Inspector):
    name = "graph"

    def __init__(self, probe, names):
        super().__init__(probe)
        self._names = names
        self._used = {}  # id -> weak reference, of every leaf parameter that some loss used
        self._why_unseen = None
        self._every_backward_walked = True
        self._told = None
        self._optimizers = 0
        self._again_at = AGAIN_AFTER
        self._open_window()

    def _open_window(self):
        self._open = True
        self._outside_told = False
        self._steps = 0
        self._walks = 0
        self._stepped = set()

    def is_unused(self, parameter):
        """True where every loss so far was walked and none uses it: its gradient comes another way, as a copy does."""
        whole = self._every_backward_walked and self._why_unseen in (None, ANOTHER_WAY)
        return whole and bool(self._used) and id(parameter) not in self._used

    def backward_begins(self, loss, first):
        if not self._open or self._why_unseen:
            return
        budget = self.probe.budget
        if self._walks and not budget.allows(budget.expected(self.name)):
            self._every_backward_walked = False
            return
        with budget.spending(self.name):
            self._walks += 1
            leaves, self._why_unseen = leaves_behind(loss)
            for leaf in leaves:
                if id(leaf) not in self._used:
                    self._used[id(leaf)] = weakref.ref(leaf)

    def step_begins(self, optimizer, clock):
        if not self._open:
            if clock and self._is_due_again(self.probe.step + 1):
                self._open_window()
            return
        self._stepped.add(id(optimizer))
        if clock and self._walks:
            self._steps += 1
            several = len(self.probe.optimizers) > 1
            if self._steps >= (STEPS_WITH_SEVERAL_OPTIMIZERS if several else STEPS):
                self._conclude()

    def _is_due_again(self, step):
        if step - self.probe.first_step >= self._again_at:
            self._again_at *= 10
            return True
        return step & 15 == 0 and len(self.probe.optimizers) != self._optimizers

    def _conclude(self):
        optimizers = list(self.probe.optimizers)
        held = {id(p): p for optimizer in optimizers for p in trainable(optimizer)}
        used = {key: leaf for key, leaf in ((key, ref()) for key, ref in self._used.items()) if leaf is not None}
        stepped = [p for optimizer in optimizers if id(optimizer) in self._stepped for p in trainable(optimizer)]
        unused = [p for p in stepped if id(p) not in used]
        some_unused = unused and len(unused) < len(stepped)
        too_early = some_unused and self._steps < STEPS_BEFORE_CALLING_SOME_UNUSED
        if too_early and self._outside_told:
            return
        self._open = too_early
        self._optimizers = len(optimizers)
        why = self._why_unseen or why_not_comparable(held.values(), used.values())
        if why:
            self._open = False
            self.probe.see(self.name, "not seen: " + why)
            return
        outside = [p for key, p in used.items() if key not in held and _is_parameter(self.probe.torch, p)]
        if outside:
            waiting = held_by_any_optimizer(self.probe.torch)
            outside = [p for p in outside if id(p) not in waiting]
        if too_early and not outside:
            return
        self._outside_told = too_early
        in_eval = how_many_in_eval(self.probe.torch, outside)
        # What is outside is outside for sure; what is unused so far may still be used.
        surely_unused = [] if too_early else unused
        counts = (len(used), len(held), len(outside), in_eval, len(surely_unused))
        outside, unused_ones = _weakly(outside[:MAX_NAMES]), _weakly(surely_unused[:MAX_NAMES])
        self._check_gradients_of(unused, lambda: self._tell(counts, outside, unused_ones))

    def _check_gradients_of(self, unused, tell):
        """A gradient on a parameter that no walked graph reached came another way: then the graph proves nothing."""
        torch = self.probe.torch
        with torch.no_grad():
            gradients = [local(p.grad) for p in unused[:MAX_CANDIDATES] if p.grad is not None]
            gradients = [g for g in gradients if g.layout == torch.strided and g.numel()]
            if not gradients:
                tell()
                return
            largest = torch.stack([g.abs().amax().to("cpu" if g.is_cpu else g.device).float() for g in gradients])

        def known(values):
            if not any(value != 0 for value in values):
                tell()
            elif self._every_backward_walked:
                self._why_unseen = ANOTHER_WAY
                self.probe.see(self.name, "not seen: " + self._why_unseen)
            else:
                self.probe.see(self.name, "not seen: not every backward could be walked within the budget")

        self.probe.scalars.later(largest, known)

    def _tell(self, counts, outside, unused):
        self.probe.see(self.name)
        if counts == self._told:
            return
        self._told = counts
        self.probe.emit(
            "graph",
            step=self.probe.step + 1,
            used=counts[0],
            held=counts[1],
            used_not_held=self._names.several(_living(outside), MAX_NAMES),
            held_not_used=self._names.several(_living(unused), MAX_NAMES),
            outside=counts[2],
            outside_in_eval=counts[3],
            unused=counts[4],
        )


def held_by_any_optimizer(torch):
    """Ids of what every optimizer holds, also those that have not stepped yet (a discriminator that starts later)."""
    optimizers = all_of_type(torch.optim.Optimizer)
    return {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}


def how_many_in_eval(torch, tensors):
    """How many of these parameters belong to modules in evaluation mode."""
    wanted = {id(tensor) for tensor in tensors}
    found = set()
    for module in all_of_type(torch.nn.Module) if wanted else ():
        if not module.__dict__.get("training", True):
            found.update(wanted.intersection(map(id, (module.__dict__.get("_parameters") or {}).values())))
    return len(found)


def leaves_behind(loss):
    """The leaf tensors that a loss (or several) depends on, and why that may not be all of them, or None."""
    roots = loss if type(loss) in (list, tuple) else (loss,)
    waiting = [root.grad_fn for root in roots if getattr(root, "grad_fn", None) is not None]
    seen = set(waiting)
    leaves = []
    deadline = time.perf_counter() + MAX_SECONDS
    while waiting:
        node = waiting.pop()
        kind = type(node).__name__
        if kind == "AccumulateGrad":
            leaves.append(node.variable)
            continue
        if "Checkpoint" in kind or hasattr(node, "run_function"):
            return leaves, "reentrant checkpointing (%s) hides what lies behind it" % kind
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
        if len(seen) > MAX_NODES or (len(seen) & 255 == 0 and time.perf_counter() > deadline):
            return leaves, "the graph is too large to walk (over %d nodes)" % len(seen)
    return leaves, None


def why_not_comparable(held, used):
    """Why the leaves of the graph are not what the optimizer holds by design, or None."""
    if any(is_sharded(p) for p in held):
        return "parameters are sharded (DTensor): the graph ends in gathered copies"
    if any(type(p).__name__ == "FlatParameter" for p in used):
        return "parameters are views of a flat one (FSDP)"
    return None


def _weakly(tensors):
    """What is told may wait on a device, and the model be gone by then."""
    return [weakref.ref(tensor) for tensor in tensors]


def _living(references):
    return [tensor for tensor in (reference() for reference in references) if tensor is not None]


def _is_parameter(torch, tensor):
    """A leaf that is no Parameter is an input that someone wants a gradient of."""
    return issubclass(type(tensor), torch.nn.Parameter) or getattr(tensor, "_is_param", False)
