"""Gradient scalers: unscales losses, and detects the steps that a scaler skips."""

import weakref

MAX_REMEMBERED = 16


class Scaler(object):
    def __init__(self, probe):
        self.probe = probe
        self.scaling = False
        """Whether a loss was scaled since the last step."""
        self.ever = False
        """Whether a loss was ever scaled in this process: then steps may be skipped."""
        self._unscaled = {}
        """id of a scaled loss -> (weak reference to it, the unscaled loss if small, its node's number, the scaler)."""

    def add_scaled(self, scaler, before, after):
        """Remember that `scaler.scale(before)` returned `after`."""
        if not self.probe.awake and not self.probe.claim("backward"):
            return
        try:
            if isinstance(before, (list, tuple)):
                for one_before, one_after in zip(before, after):
                    self._remember(scaler, one_before, one_after)
            else:
                self._remember(scaler, before, after)
        except Exception as error:
            self.probe.failed("tracking a scaled loss", error)

    def _remember(self, scaler, before, after):
        if before is after or not isinstance(after, self.probe.torch.Tensor):
            return
        if len(self._unscaled) >= MAX_REMEMBERED:
            self._unscaled.clear()
        self.scaling = self.ever = True
        if self.probe.fast_path.on:
            self.probe.fast_path.leave()
        value = before.detach() if before.numel() == 1 else None  # a larger tensor is not kept alive
        self._unscaled[id(after)] = (weakref.ref(after), value, _node_number(after.grad_fn), scaler)

    def unscaled(self, loss):
        """Return the loss before scaling, or the loss itself if it was not scaled."""
        known = self._unscaled.get(id(loss))
        if known is not None and known[0]() is loss:
            return known[1] if known[1] is not None else loss.detach() / known[3]._scale
        inputs = {_node_number(node) for node, _ in getattr(loss.grad_fn, "next_functions", ())} - {None}
        for _, _, number, scaler in self._unscaled.values():
            if number in inputs:
                return loss.detach() / scaler._scale
        return loss

    def reset(self):
        self.scaling = False
        self._unscaled.clear()

    def begin_step(self):
        return self.probe.steps.entered

    def end_step(self, scaler, optimizer, entered_before):
        """Record a skipped step if no optimizer stepped inside the scaler's step."""
        probe = self.probe
        if not probe.awake or probe.steps.entered != entered_before:
            return
        try:
            if scaler.is_enabled() and isinstance(optimizer, probe.torch.optim.Optimizer):
                probe.steps.skip(optimizer)
                self.reset()
        except Exception as error:
            probe.failed("tracking a skipped step", error)


def _node_number(node):
    """Return an autograd node's sequence number, which identifies the node without keeping its graph alive."""
    number = getattr(node, "_sequence_nr", None)
    return None if number is None else number()
