"""Whether the named devices can be used at all: numbers there and back, a product, a gradient. One after the other."""

import json
import sys
import time


def say(**values):
    print(json.dumps(values), flush=True)


def tried(torch, device):
    """None, or what is wrong."""
    torch.manual_seed(0)
    here = torch.randn(128, 96)
    there = here.to(device)
    if there.device.type != torch.device(device).type:
        return "a tensor that was sent to %s is on %s" % (device, there.device)
    if not torch.equal(there.cpu(), here):
        return "numbers that were copied there and back are not the same"
    weight = torch.randn(96, 64)
    product = there @ weight.to(device)
    expected = here.double() @ weight.double()
    off = float((product.cpu().double() - expected).abs().max())
    if not off < 0.1:  # of values around 10: what is wrong here is wrong, not rounded
        return "a product of two matrices is off by %.3g" % off
    leaf = weight.to(device).requires_grad_()
    (there @ leaf).square().mean().backward()
    if leaf.grad is None or not bool(torch.isfinite(leaf.grad).all()) or not bool((leaf.grad != 0).any()):
        return "a gradient is missing, zero or not finite"
    return None


def seconds_of(torch, device):
    """One product of a thousand by a thousand, after a first one."""
    big = torch.ones(1024, 1024, device=device)
    float((big @ big)[0, 0])
    began = time.perf_counter()
    float((big @ big)[0, 0])
    return round(time.perf_counter() - began, 5)


def main(devices):
    sys.path[:] = [entry for entry in sys.path if entry]
    import torch

    for device in devices:
        say(trying=device)
        try:
            problem = tried(torch, device)
            say(device=device, problem=problem, seconds=None if problem else seconds_of(torch, device))
        except Exception as error:
            say(device=device, problem="%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0][:400]))


if __name__ == "__main__":
    main(sys.argv[1:])
