"""Gradient scalers: undoes the scale of a loss, and sees the steps that they skip."""

import weakref

REMEMBERED = 16


class Scaler(object):
    def __init__(self, probe):
        self.probe = probe
        self.scaling = False
        """A loss was scaled since the last step."""
        self.ever = False
        """One was scaled in this process: a step may be skipped."""
        self._unscaled = {}
        """id of a scaled loss -> (weak reference to it, the loss before scaling if small, its node's number, the scaler)."""

    def scaled(self, scaler, before, after):
        """`scaler.scale(before)` returned `after`."""
        if not self.probe.awake and not self.probe.claim("backward"):
            return
        try:
            if isinstance(before, (list, tuple)):
                for one_before, one_after in zip(before, after):
                    self._remember(scaler, one_before, one_after)
            else:
                self._remember(scaler, before, after)
        except Exception as error:
            self.probe.failed("following a scaled loss", error)

    def _remember(self, scaler, before, after):
        if before is after or not isinstance(after, self.probe.torch.Tensor):
            return
        if len(self._unscaled) >= REMEMBERED:
            self._unscaled.clear()
        self.scaling = self.ever = True
        if self.probe.quick.on:
            self.probe.quick.leave()
        value = before.detach() if before.numel() == 1 else None  # a larger one is not kept from being freed
        self._unscaled[id(after)] = (weakref.ref(after), value, _number(after.grad_fn), scaler)

    def unscaled(self, loss):
        """The loss as it was before scaling, if it was scaled."""
        known = self._unscaled.get(id(loss))
        if known is not None and known[0]() is loss:
            return known[1] if known[1] is not None else loss.detach() / known[3]._scale
        made_from = {_number(node) for node, _ in getattr(loss.grad_fn, "next_functions", ())} - {None}
        for _, _, number, scaler in self._unscaled.values():
            if number in made_from:
                return loss.detach() / scaler._scale
        return loss

    def forget(self):
        self.scaling = False
        self._unscaled.clear()

    def step_begins(self):
        return self.probe.steps.entered

    def step_ended(self, scaler, optimizer, entered_before):
        """No optimizer's step ran inside the scaler's: it skipped."""
        probe = self.probe
        if not probe.awake or probe.steps.entered != entered_before:
            return
        try:
            if scaler.is_enabled() and isinstance(optimizer, probe.torch.optim.Optimizer):
                probe.steps.skipped(optimizer)
                self.forget()
        except Exception as error:
            probe.failed("following a skipped step", error)


def _number(node):
    """An autograd node's place in the order of their making: it names the node without keeping its graph alive."""
    number = getattr(node, "_sequence_nr", None)
    return None if number is None else number()
