"""Checks whether the named devices can be used, one at a time: a copy there and back, a matrix product, a gradient."""

import json
import sys
import time


def emit(**values):
    print(json.dumps(values), flush=True)


def find_problem(torch, device):
    """Return what is wrong with the device, or None."""
    torch.manual_seed(0)
    on_cpu = torch.randn(128, 96)
    on_device = on_cpu.to(device)
    if on_device.device.type != torch.device(device).type:
        return "a tensor that was moved to %s is on %s" % (device, on_device.device)
    if not torch.equal(on_device.cpu(), on_cpu):
        return "a tensor that was copied to the device and back has changed"
    weight = torch.randn(96, 64)
    product = on_device @ weight.to(device)
    expected = on_cpu.double() @ weight.double()
    error = float((product.cpu().double() - expected).abs().max())
    if not error < 0.1:  # the values are around 10: such an error is not rounding
        return "the product of two matrices is off by %.3g" % error
    leaf = weight.to(device).requires_grad_()
    (on_device @ leaf).square().mean().backward()
    if leaf.grad is None or not bool(torch.isfinite(leaf.grad).all()) or not bool((leaf.grad != 0).any()):
        return "a gradient is missing, zero or not finite"
    return None


def measure_product(torch, device):
    """Return the seconds that a product of two 1024 x 1024 matrices takes, after a first one as warm-up."""
    big = torch.ones(1024, 1024, device=device)
    float((big @ big)[0, 0])
    began = time.perf_counter()
    float((big @ big)[0, 0])
    return round(time.perf_counter() - began, 5)


def main(devices):
    sys.path[:] = [entry for entry in sys.path if entry]
    import torch

    for device in devices:
        emit(trying=device)
        try:
            problem = find_problem(torch, device)
            emit(device=device, problem=problem, seconds=None if problem else measure_product(torch, device))
        except Exception as error:
            emit(device=device, problem="%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:400]))


if __name__ == "__main__":
    main(sys.argv[1:])
