"""The order of a dry run: the first steps as they are, under the operator check; then one batch again and again; then the end.

Every experiment begins from the weights, the optimizer's state and the random numbers that the training had before its first
step. Schedules stand still meanwhile, and the rate is the one that the training is to reach: warm-up would hide what can be
learned. A batch is given again by its loader, or, where each is drawn, by setting the random numbers back; where neither can be
done, some more steps are made as they are.
"""

import os
import time

from .. import op_check
from ..event_writer import encode_event
from ..import_hooks import after_import
from ..op_check import canaries
from ..op_check.cpu_mirror import to_host
from ..param_names import ParamNames
from . import FILE
from .initial_loss import first_loss
from .loader_override import AGAIN, AS_IT_IS, ZEROED
from .overfit_one_batch import OverfitCurve
from .state import State

CLEAR_FALL = 0.1
"""Of the first loss: what another rate is not tried after."""
MAX_CURVES = 3
MAX_BACKWARDS = 64
"""Before the first step: accumulating more than that is not usual."""


class DryRun(object):
    def __init__(
        self, torch, probe, loading, steps=3, op_check_seconds=20.0, curve_steps=24, curve_seconds=10.0, seconds=40.0
    ):
        self._torch, self._probe, self._loading = torch, probe, loading
        self._steps, self._op_check_seconds = steps, op_check_seconds
        self._curve_steps, self._curve_seconds, self._seconds = curve_steps, curve_seconds, seconds
        self._pid = os.getpid()
        self._path = os.path.join(probe.attempt_dir, FILE)
        self._descriptor = -1
        self._names = ParamNames(probe)
        self._began = self._step_at = time.monotonic()
        self._experiments_from = 0.0
        self._phase = "first"
        self._state = None
        self._no_state = ""
        self._losses = []
        """Of the backwards of the step at hand."""
        self._seen = []
        """Losses of the steps as they are."""
        self._others = False
        self._rates = []
        self._curve = None
        self._best = None
        self._curves = 0
        self._theory_told = False
        self._drawn = self._then_drawn = False
        self._twice = []
        self._backwards = 0
        """Since the last step."""
        self._over = False

    def start(self):
        import atexit

        torch, probe = self._torch, self._probe
        inspectors = probe.inspectors
        self._session = op_check.Session(torch, probe, self._steps, self._op_check_seconds, then=self._first_steps_over)
        self._session.start()
        probe.inspectors = []
        self._inspectors = inspectors
        self._listen()
        after_import("torch.optim.lr_scheduler", self._hold_schedules)
        self.counter = op_check.Steps(torch, self._step_begins, self._step_ended)
        atexit.register(self._ended, "the training ended by itself")
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    # --- what is heard -------------------------------------------------------------------------------------------

    def _listen(self):
        autograd = self._torch.autograd
        original = autograd.backward
        task = getattr(self._torch._C, "_current_graph_task_id", lambda: -1)

        def backward(tensors, *args, **kwargs):
            if not self._over and task() == -1:
                self._unharmed(self._backward_begins, tensors)
            return original(tensors, *args, **kwargs)

        autograd.backward = backward

    def _hold_schedules(self, module):
        """While one batch is repeated: a schedule of so many steps would end, and none is to change the rate."""
        kinds = {id(kind): kind for kind in vars(module).values() if isinstance(kind, type) and "step" in vars(kind)}
        for kind in kinds.values():
            if kind.__module__ == module.__name__:
                kind.step = self._held(kind.step)

    def _held(self, original):
        def step(scheduler, *args, **kwargs):
            if self._curve is not None and not self._over:
                return None
            return original(scheduler, *args, **kwargs)

        return step

    def _backward_begins(self, tensors):
        self._loading.backward_begins()
        self._backwards += 1
        if self._backwards > MAX_BACKWARDS and not self.counter.count:
            self._leave("no optimizer of torch's stepped in %d backwards" % MAX_BACKWARDS)
        losses = [tensors] if isinstance(tensors, self._torch.Tensor) else list(tensors or ())
        with self._quiet():
            scaler = self._probe.scaler
            values = [to_host(self._torch, scaler.unscaled(loss).detach()).double().mean() for loss in losses]
            value = float(sum(values))
            if not self._theory_told and losses and losses[0].grad_fn is not None:
                self._theory_told = True
                self._tell_theory(losses[0], value)
            # Of the closures of one step the first counts.
            if not (self.counter.depth and self._losses):
                self._losses.append(value)

    def _tell_theory(self, loss, value):
        try:
            found = first_loss(self._torch, loss, value)
        except Exception as error:
            found = {"why": "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:200])}
        self._write("first-loss", found)

    # --- steps ---------------------------------------------------------------------------------------------------

    def _step_begins(self, optimizer):
        if not self._over:
            self._unharmed(self._begins, optimizer)

    def _begins(self, optimizer):
        with self._quiet():
            if self._state is None and not self._no_state:
                try:
                    self._state = State(self._torch, optimizer)
                except Exception as error:
                    self._no_state = "what it is before its first step cannot be kept (%s)" % str(error).split("\n")[0]
            elif self._state is not None and optimizer is not self._state.optimizer and self.counter.depth == 1:
                self._others = True
            if self._state is not None and optimizer is self._state.optimizer:
                if self._curve is None:
                    self._rates.append([_rate(group) for group in optimizer.param_groups])
                else:
                    self._curve.step_begins()

    def _step_ended(self, optimizer, counts):
        if not self._over and counts:
            self._unharmed(self._ended_step, optimizer)

    def _ended_step(self, optimizer):
        now = time.monotonic()
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        self._losses = []
        self._write(
            "dry-run-step",
            {"phase": self._phase, "step": self.counter.count, "loss": loss, "seconds": round(now - self._step_at, 4)},
        )
        self._step_at = now
        if self._curve is not None:
            self._curve.step_ended(loss)
            if self._curve.is_over(now):
                with self._quiet():
                    self._next_curve()
        else:
            self._seen.append(loss)
            if self._phase == "drawn":
                with self._quiet():
                    self._drawn_again(loss)
            elif self._phase == "first" and self.counter.count >= self._steps:
                with self._quiet():
                    self._after_first_steps()
            elif self._phase == "more" and (
                self.counter.count >= self._steps + self._curve_steps
                or now - self._experiments_from > 2 * self._curve_seconds
            ):
                with self._quiet():
                    self._more_steps_over(now)

    # --- the experiments -----------------------------------------------------------------------------------------

    def _first_steps_over(self, probe):
        """The operator check has closed its books; what follows comes in our own hook, after its."""

    def _after_first_steps(self):
        session, probe, torch = self._session, self._probe, self._torch
        session.close("{compared} of {calls} calls in {steps} steps were compared")
        session.stop()
        probe.inspectors, probe._inspector_calls = self._inspectors, {}
        for device in {str(p.device) for p in self._state.parameters} if self._state is not None else ():
            if not device.startswith(("cpu", "meta")):
                self._write("canaries", {"device": device, "results": canaries.run_all(torch, device)})
        self._experiments_from = time.monotonic()
        why = self._why_no_experiments()
        if not why and not self._loading.has_batch:
            # Many loops draw each batch: with the random numbers set back, the next one is the same again. But so is all else
            # that is drawn, dropout for one: what the rules are to see is made before.
            self._phase, self._then_drawn = "more", True
            return
        self._experiments(why)

    def _experiments(self, why, drawn=False):
        certain = not why and not drawn and self._loading.input_is_certain()
        self._write("experiments", {"possible": not why, "why": why, "drawn": drawn, "input_is_certain": certain})
        self._drawn = drawn
        if why:
            self._phase = "more"
        else:
            self._begin_curve(1.0, AGAIN)

    def _more_steps_over(self, now):
        if not self._then_drawn:
            self._leave("its first steps are made")
        self._then_drawn, self._phase, self._experiments_from = False, "drawn", now
        self._state.restore()

    def _drawn_again(self, loss):
        """Whether two steps from the same weights and random numbers have the same loss: then they had the same batch."""
        self._twice.append(loss)
        if len(self._twice) < 2:
            self._state.restore()
        elif self._twice[0] == self._twice[1]:
            self._experiments("", drawn=True)
        else:
            self._experiments(
                "it reads no DataLoader and goes its own way through its data: no batch can be given again"
            )

    def _why_no_experiments(self):
        if self._no_state:
            return self._no_state
        if self._others:
            return "several optimizers step, so that there is not one loss that has to fall"
        if self._probe.world_size > 1:
            return "several processes train together"
        if self._loading.too_large:
            return "a batch takes more than 1 GB"
        if any(loss is None for loss in self._seen):
            return "its losses are not seen: no backward came between its steps"
        if any(loss < 0 for loss in self._seen):
            return "its loss is below 0, so that nothing says how far it has to fall"
        if not any(self._seen):
            return "its loss is exactly 0"
        return ""

    def _nominal(self):
        """The rates that the training is to reach, as far as is known; each group's own."""
        rates = []
        for number, group in enumerate(self._state.optimizer.param_groups):
            seen = [step[number] for step in self._rates if number < len(step) and step[number] is not None]
            planned = group.get("initial_lr")
            candidates = seen + ([float(planned)] if isinstance(planned, (int, float)) else [])
            best = max(candidates) if candidates else 0.0
            if not best:
                usual = self._state.optimizer.defaults.get("lr")
                best = float(usual) if isinstance(usual, (int, float)) and usual else 1e-3
            rates.append(best)
        return rates

    def _begin_curve(self, factor, mode, steps=None, seconds=None):
        self._state.restore()
        self._loading.mode, self._loading.given = mode, 0
        self._phase = "one batch" if mode == AGAIN else "zeroed"
        rates = [rate * factor for rate in self._nominal_once()]
        self._curve = OverfitCurve(
            self._torch, self._state, self._names, mode, factor, rates, steps or self._curve_steps,
            seconds or self._curve_seconds, self._drawn,
        )  # fmt: skip
        self._curves += 1
        self._losses = []

    def _nominal_once(self):
        if not hasattr(self, "_nominal_rates"):
            self._nominal_rates = self._nominal()
        return self._nominal_rates

    def _next_curve(self):
        curve = self._curve
        told = curve.told()
        told.update(zero_already=self._loading.zero_already, given=self._loading.given)
        self._write("curve", told)
        left = self._seconds - (time.monotonic() - self._experiments_from)
        if curve.mode == ZEROED:
            self._leave("all experiments are made")
        if self._best is None or curve.fall > self._best.fall:
            self._best = curve
        factor = curve.another_factor()
        if self._best.fall < CLEAR_FALL and factor is not None and self._curves < MAX_CURVES and left > 3.0:
            self._begin_curve(factor, AGAIN, seconds=min(self._curve_seconds, left))
        elif not self._best.is_constant and left > 2.0 and self._loading.given:
            self._begin_curve(self._best.factor, ZEROED, len(self._best.losses), min(left, 2 * self._curve_seconds))
        else:
            self._leave("all experiments are made")

    # --- writing, and the end ------------------------------------------------------------------------------------

    def _quiet(self):
        return _Quiet(self._session.checker)

    def _unharmed(self, function, *args):
        """Whatever goes wrong in here is told, and ends the dry run: the training is not to suffer from it."""
        try:
            function(*args)
        except Exception as error:
            self._ended("the dry run failed: %s: %s" % (type(error).__name__, str(error).split("\n")[0][:300]))
            op_check.leave(self._probe)

    def _leave(self, why):
        self._ended(why)
        op_check.leave(self._probe)

    def _ended(self, why):
        if self._over or os.getpid() != self._pid:
            return
        self._over = True
        self._loading.mode = AS_IT_IS
        # A process that never came near a step has nothing to say: it may be a helper of the training's.
        if self.counter.count or self._theory_told:
            seconds = round(time.monotonic() - self._began, 3)
            self._write("dry-run-ended", {"why": why, "steps": self.counter.count, "seconds": seconds})

    def _forked(self):
        self._over = True

    def _write(self, event, fields):
        try:
            if self._descriptor < 0:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            os.write(self._descriptor, encode_event(event, dict(fields, pid=self._pid)))
        except OSError:
            pass


class _Quiet(object):
    """What we do ourselves is not compared by the operator check."""

    def __init__(self, session):
        self._checker = session

    def __enter__(self):
        self._before, self._checker.off = self._checker.off, True

    def __exit__(self, *exc):
        self._checker.off = self._before


def _rate(group):
    rate = group.get("lr")
    return float(rate) if isinstance(rate, (int, float)) or hasattr(rate, "item") else None
