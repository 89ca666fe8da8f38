"""The order of a dry run: the unmodified first steps under the operator check, then one batch repeatedly, then the exit.

Every experiment begins with the weights, the optimizer state and the random state from before the first step. Schedulers are
paused meanwhile, and the learning rate is the one that the training will reach: warm-up would hide what can be learned. The
loader repeats a batch. If the training draws its batches at random, restoring the random state repeats them. If neither is
possible, some more unmodified steps are run.
"""

import os
import time

from .. import op_check
from ..devices import is_accelerator
from ..event_writer import encode_event
from ..import_hooks import after_import
from ..op_check import canaries
from ..op_check.cpu_mirror import to_host
from ..param_names import ParamNames
from . import FILE
from .initial_loss import explain_first_loss
from .loader_override import PASS_THROUGH, REPEATED, ZEROED
from .overfit_one_batch import OverfitCurve
from .state import State

MIN_CLEAR_DROP = 0.1
"""As a fraction of the first loss. After such a drop, no other rate is tried."""
MAX_CURVES = 3
MAX_BACKWARDS = 64
"""Before the first step. Accumulating over more backwards is unusual."""


class DryRun(object):
    def __init__(
        self, torch, probe, override, steps=3, op_check_seconds=20.0, curve_steps=24, curve_seconds=10.0, seconds=40.0
    ):
        self._torch, self._probe, self._override = torch, probe, override
        self._steps, self._op_check_seconds = steps, op_check_seconds
        self._curve_steps, self._curve_seconds, self._seconds = curve_steps, curve_seconds, seconds
        self._pid = os.getpid()
        self._path = os.path.join(probe.attempt_dir, FILE)
        self._descriptor = -1
        self._names = ParamNames(probe)
        self._began = self._step_began = time.monotonic()
        self._experiments_began = 0.0
        self._phase = "first"
        self._state = None
        self._state_error = ""
        self._losses = []
        """The losses of the backwards in the current step."""
        self._regular_losses = []
        """The losses of the unmodified steps."""
        self._has_other_optimizers = False
        self._rates = []
        self._curve = None
        self._best = None
        self._curves = 0
        self._is_first_loss_reported = False
        self._is_drawn = self._will_redraw = False
        self._redrawn_losses = []
        self._backwards = 0
        """Since the last step."""
        self._is_over = False

    def start(self):
        import atexit

        torch, probe = self._torch, self._probe
        inspectors = probe.inspectors
        self._session = op_check.Session(
            torch, probe, self._steps, self._op_check_seconds, on_finish=self._continue_after_check
        )
        self._session.start()
        probe.inspectors = []
        self._inspectors = inspectors
        self._wrap_backward()
        after_import("torch.optim.lr_scheduler", self._pause_schedulers)
        self.counter = op_check.Steps(torch, self._step_begins, self._step_ended)
        atexit.register(self._finish, "the training ended by itself")
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    # --- patches -------------------------------------------------------------------------------------------------

    def _wrap_backward(self):
        autograd = self._torch.autograd
        original = autograd.backward
        task = getattr(self._torch._C, "_current_graph_task_id", lambda: -1)

        def backward(tensors, *args, **kwargs):
            if not self._is_over and task() == -1:
                self._run_safely(self._backward_begins, tensors)
            return original(tensors, *args, **kwargs)

        autograd.backward = backward

    def _pause_schedulers(self, module):
        """Pause schedulers while one batch is repeated. They must not change the rate, and a finite schedule would end."""
        kinds = {id(kind): kind for kind in vars(module).values() if isinstance(kind, type) and "step" in vars(kind)}
        for kind in kinds.values():
            if kind.__module__ == module.__name__:
                kind.step = self._make_pausable(kind.step)

    def _make_pausable(self, original):
        def step(scheduler, *args, **kwargs):
            if self._curve is not None and not self._is_over:
                return None
            return original(scheduler, *args, **kwargs)

        return step

    def _backward_begins(self, tensors):
        self._override.backward_begins()
        self._backwards += 1
        if self._backwards > MAX_BACKWARDS and not self.counter.count:
            self._finish_and_exit("no torch optimizer made a step in %d backwards" % MAX_BACKWARDS)
        losses = [tensors] if isinstance(tensors, self._torch.Tensor) else list(tensors or ())
        with self._pause_checker():
            scaler = self._probe.scaler
            values = [to_host(self._torch, scaler.unscaled(loss).detach()).double().mean() for loss in losses]
            value = float(sum(values))
            if not self._is_first_loss_reported and losses and losses[0].grad_fn is not None:
                self._is_first_loss_reported = True
                self._report_first_loss(losses[0], value)
            # If a step calls its closure several times, the first loss counts.
            if not (self.counter.depth and self._losses):
                self._losses.append(value)

    def _report_first_loss(self, loss, value):
        try:
            fields = explain_first_loss(self._torch, loss, value)
        except Exception as error:
            fields = {"why": "%s: %s" % (type(error).__name__, str(error).split("\n")[0][:200])}
        self._write("first-loss", fields)

    # --- steps ---------------------------------------------------------------------------------------------------

    def _step_begins(self, optimizer):
        if not self._is_over:
            self._run_safely(self._before_step, optimizer)

    def _before_step(self, optimizer):
        with self._pause_checker():
            if self._state is None and not self._state_error:
                try:
                    self._state = State(self._torch, optimizer)
                except Exception as error:
                    self._state_error = (
                        "its state before the first step cannot be copied (%s)" % str(error).split("\n")[0]
                    )
            elif self._state is not None and optimizer is not self._state.optimizer and self.counter.depth == 1:
                self._has_other_optimizers = True
            if self._state is not None and optimizer is self._state.optimizer:
                if self._curve is None:
                    self._rates.append([_get_rate(group) for group in optimizer.param_groups])
                else:
                    self._curve.step_begins()

    def _step_ended(self, optimizer, counts):
        if not self._is_over and counts:
            self._run_safely(self._after_step, optimizer)

    def _after_step(self, optimizer):
        now = time.monotonic()
        loss = sum(self._losses) / len(self._losses) if self._losses else None
        self._losses = []
        self._write(
            "dry-run-step",
            {
                "phase": self._phase,
                "step": self.counter.count,
                "loss": loss,
                "seconds": round(now - self._step_began, 4),
            },
        )
        self._step_began = now
        if self._curve is not None:
            self._curve.step_ended(loss)
            if self._curve.is_over(now):
                with self._pause_checker():
                    self._next_curve()
        else:
            self._regular_losses.append(loss)
            if self._phase == "drawn":
                with self._pause_checker():
                    self._compare_redrawn(loss)
            elif self._phase == "first" and self.counter.count >= self._steps:
                with self._pause_checker():
                    self._after_first_steps()
            elif self._phase == "more" and (
                self.counter.count >= self._steps + self._curve_steps
                or now - self._experiments_began > 2 * self._curve_seconds
            ):
                with self._pause_checker():
                    self._finish_more_steps(now)

    # --- the experiments -----------------------------------------------------------------------------------------

    def _continue_after_check(self, probe):
        """Do nothing when the operator check is finished. The dry run continues in its own hook, which runs later."""

    def _after_first_steps(self):
        session, probe, torch = self._session, self._probe, self._torch
        session.close("{compared} of {calls} calls in {steps} steps were compared")
        session.stop()
        probe.inspectors = self._inspectors
        devices = {p.device for p in self._state.parameters} if self._state is not None else ()
        for device in map(str, filter(is_accelerator, devices)):
            self._write("canaries", {"device": device, "results": canaries.run_all(torch, device)})
        self._experiments_began = time.monotonic()
        why = self._find_obstacle()
        if not why and not self._override.has_batch:
            # Many loops draw each batch at random: restoring the random state repeats the batch. But it also repeats dropout
            # and everything else that is drawn, so the steps that the rules evaluate are run first.
            self._phase, self._will_redraw = "more", True
            return
        self._experiments(why)

    def _experiments(self, why, drawn=False):
        certain = not why and not drawn and self._override.input_is_certain()
        self._write("experiments", {"possible": not why, "why": why, "drawn": drawn, "input_is_certain": certain})
        self._is_drawn = drawn
        if why:
            self._phase = "more"
        else:
            self._begin_curve(1.0, REPEATED)

    def _finish_more_steps(self, now):
        if not self._will_redraw:
            self._finish_and_exit("its first steps are done")
        self._will_redraw, self._phase, self._experiments_began = False, "drawn", now
        self._state.restore()

    def _compare_redrawn(self, loss):
        """Check whether two steps from the same weights and random state have the same loss, and so the same batch."""
        self._redrawn_losses.append(loss)
        if len(self._redrawn_losses) < 2:
            self._state.restore()
        elif self._redrawn_losses[0] == self._redrawn_losses[1]:
            self._experiments("", drawn=True)
        else:
            self._experiments(
                "it does not use a DataLoader, and the random state does not repeat its batches: no batch can be repeated"
            )

    def _find_obstacle(self):
        if self._state_error:
            return self._state_error
        if self._has_other_optimizers:
            return "several optimizers step, so there is no single loss that must fall"
        if self._probe.world_size > 1:
            return "several processes train together"
        if self._override.too_large:
            return "a batch takes more than 1 GB"
        if any(loss is None for loss in self._regular_losses):
            return "its losses are unknown: there was no backward pass between its steps"
        if any(loss < 0 for loss in self._regular_losses):
            return "its loss is below 0, so it is unknown how far it must fall"
        if not any(self._regular_losses):
            return "its loss is exactly 0"
        return ""

    def _find_nominal_rates(self):
        """Return for each group the learning rate that the training will reach, as far as it is known."""
        rates = []
        for number, group in enumerate(self._state.optimizer.param_groups):
            seen = [step[number] for step in self._rates if number < len(step) and step[number] is not None]
            planned = group.get("initial_lr")
            candidates = seen + ([float(planned)] if isinstance(planned, (int, float)) else [])
            rate = max(candidates) if candidates else 0.0
            if not rate:
                default = self._state.optimizer.defaults.get("lr")
                rate = float(default) if isinstance(default, (int, float)) and default else 1e-3
            rates.append(rate)
        return rates

    def _begin_curve(self, factor, mode, steps=None, seconds=None):
        self._state.restore()
        self._override.mode, self._override.given = mode, 0
        self._phase = "one batch" if mode == REPEATED else "zeroed"
        rates = [rate * factor for rate in self._get_nominal_rates()]
        self._curve = OverfitCurve(
            self._torch, self._state, self._names, mode, factor, rates, steps or self._curve_steps,
            seconds or self._curve_seconds, self._is_drawn,
        )  # fmt: skip
        self._curves += 1
        self._losses = []

    def _get_nominal_rates(self):
        if not hasattr(self, "_nominal_rates"):
            self._nominal_rates = self._find_nominal_rates()
        return self._nominal_rates

    def _next_curve(self):
        curve = self._curve
        fields = curve.as_fields()
        fields.update(zero_already=self._override.zero_already, given=self._override.given)
        self._write("curve", fields)
        seconds_left = self._seconds - (time.monotonic() - self._experiments_began)
        if curve.mode == ZEROED:
            self._finish_and_exit("all experiments are done")
        if self._best is None or curve.loss_drop > self._best.loss_drop:
            self._best = curve
        factor = curve.next_factor()
        if (
            self._best.loss_drop < MIN_CLEAR_DROP
            and factor is not None
            and self._curves < MAX_CURVES
            and seconds_left > 3.0
        ):
            self._begin_curve(factor, REPEATED, seconds=min(self._curve_seconds, seconds_left))
        elif not self._best.is_constant and seconds_left > 2.0 and self._override.given:
            self._begin_curve(
                self._best.factor, ZEROED, len(self._best.losses), min(seconds_left, 2 * self._curve_seconds)
            )
        else:
            self._finish_and_exit("all experiments are done")

    # --- writing and exiting -------------------------------------------------------------------------------------

    def _pause_checker(self):
        return _PausedChecker(self._session.checker)

    def _run_safely(self, function, *args):
        """Call a function. If it raises, report the error and end the dry run: the error must not reach the training."""
        try:
            function(*args)
        except Exception as error:
            self._finish("the dry run failed: %s: %s" % (type(error).__name__, str(error).split("\n")[0][:300]))
            op_check.exit_process(self._probe)

    def _finish_and_exit(self, why):
        self._finish(why)
        op_check.exit_process(self._probe)

    def _finish(self, why):
        if self._is_over or os.getpid() != self._pid:
            return
        self._is_over = True
        self._override.mode = PASS_THROUGH
        # A process without a backward or a step writes nothing: it may be a helper process of the training.
        if self.counter.count or self._is_first_loss_reported:
            seconds = round(time.monotonic() - self._began, 3)
            self._write("dry-run-ended", {"why": why, "steps": self.counter.count, "seconds": seconds})

    def _forked(self):
        self._is_over = True

    def _write(self, event, fields):
        try:
            if self._descriptor < 0:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            os.write(self._descriptor, encode_event(event, dict(fields, pid=self._pid)))
        except OSError:
            pass


class _PausedChecker(object):
    """Disables the operator check while Holdfast itself runs operators."""

    def __init__(self, session):
        self._checker = session

    def __enter__(self):
        self._before, self._checker.off = self._checker.off, True

    def __exit__(self, *exc):
        self._checker.off = self._before


def _get_rate(group):
    rate = group.get("lr")
    return float(rate) if isinstance(rate, (int, float)) or hasattr(rate, "item") else None
