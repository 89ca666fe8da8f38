"""Tiny programs that show in milliseconds whether this device has a publicly known bug. One program per bug.

Each takes torch and a device and returns None or what is wrong. All of them pass on a CPU. A process without torch runs this
file's text with an interpreter that has torch, passing the device's name. It prints the result of `run_all` as one line of
JSON.
"""

import json
import sys

LONG_SUM = 33000


def scalar_writes(torch, device):
    """F01: `x=zeros(3); x[1]=1; x[2]=3` gave [0, 3, 3] (pytorch#122016)."""
    x = torch.zeros(3, device=device)
    x[1] = 1
    x[2] = 3
    return _describe_difference(x.tolist(), [0.0, 1.0, 3.0], "zeros(3) with 1 written to index 1 and 3 to index 2")


def boolean_counts(torch, device):
    """F04: boolean indexing in quick succession returned wrong numbers of elements (pytorch#181867)."""
    values = torch.arange(512, device=device, dtype=torch.float32)
    masks = [values % divisor == 0 for divisor in (2, 3, 5, 7) * 8]
    # Do not read in between: reading waits for the device and hides the bug.
    counts = [len(values[mask]) for mask in masks]
    return _describe_difference(counts, [256, 171, 103, 74] * 8, "elements selected by 32 masks in succession")


def long_products(torch, device):
    """F11: a matrix product over 32767 terms or more read out of bounds (pytorch#177116)."""
    ones = torch.ones(2, LONG_SUM, device=device)
    quarters = torch.full((LONG_SUM, 2), 0.25, device=device)
    return _describe_difference(
        (ones @ quarters).tolist(), [[LONG_SUM / 4.0] * 2] * 2, "a matrix product over %d terms" % LONG_SUM
    )


def expanded_gradients(torch, device):
    """F12: gradients through expanded tensors were zero or corrupt (pytorch#180201)."""
    weight = torch.ones(4, 3, device=device, requires_grad=True)
    x = torch.arange(6.0, device=device).reshape(2, 3)
    # The gradient of the sum is an expanded tensor: one number, with strides 0.
    ((x @ weight.t()) * 2.0).sum().backward()
    through_product = _describe_difference(
        weight.grad.tolist(), [[6.0, 10.0, 14.0]] * 4, "a gradient through a sum and a product"
    )
    row = torch.ones(3, device=device, requires_grad=True)
    (row.expand(5, 3) * 3.0).sum().backward()
    return through_product or _describe_difference(row.grad.tolist(), [15.0] * 3, "the gradient of an expanded row")


def writes_into_gaps(torch, device):
    """F13: in-place operators on a non-contiguous tensor wrote to a temporary (pytorch#118115, pytorch#165267)."""
    for name in ("addcmul_", "addcdiv_"):
        x = torch.ones(3, 4, device=device)
        one, two = (torch.full((4, 3), value, device=device) for value in (3.0, 2.0))
        getattr(x.t(), name)(one, two)
        expected = 7.0 if name == "addcmul_" else 2.5
        wrong = _describe_difference(x.tolist(), [[expected] * 4] * 3, "%s on a transposed tensor" % name)
        if wrong:
            return wrong
    return None


def random_into_gaps(torch, device):
    """F13: random numbers drawn in place into a non-contiguous tensor were not written (macOS before 15)."""
    for name in ("random_", "normal_", "uniform_"):
        x = torch.full((16, 8), -1000.0, device=device)
        arguments = {"random_": (0, 100), "normal_": (0.0, 1.0), "uniform_": (0.0, 1.0)}[name]
        state = _generator_state(torch, device)
        getattr(x.t(), name)(*arguments)
        _restore_generator(torch, device, state)
        unchanged = sum(value == -1000.0 for row in x.tolist() for value in row)
        if unchanged:
            return "%s on a transposed tensor left %d of 128 elements unchanged" % (name, unchanged)
    return None


def convolution_weight_strides(torch, device):
    """F13: conv2d ignored the strides of a non-contiguous weight (pytorch#192212)."""
    weight = torch.arange(24.0, device="cpu").reshape(3, 2, 2, 2).permute(1, 0, 2, 3)
    image = torch.arange(27.0, device="cpu").reshape(1, 3, 3, 3)
    expected = torch.nn.functional.conv2d(image, weight.contiguous()).tolist()
    device_weight = torch.arange(24.0, device="cpu").reshape(3, 2, 2, 2).to(device).permute(1, 0, 2, 3)
    return _describe_difference(
        torch.nn.functional.conv2d(image.to(device), device_weight).tolist(), expected, "conv2d with a permuted weight"
    )


def greatest_with_nan(torch, device):
    """F14: argmax ignored NaN (pytorch#130295)."""
    x = torch.tensor([[1.0, float("nan"), 3.0], [2.0, 5.0, 4.0]]).to(device)
    return _describe_difference(x.argmax(1).tolist(), [1, 1], "argmax with a NaN")


def sorted_columns(torch, device):
    """F14: argsort along the first dimension was wrong (pytorch#183885)."""
    x = torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, 0.0]]).to(device)
    return _describe_difference(x.argsort(dim=0).tolist(), [[1, 2], [2, 0], [0, 1]], "argsort(dim=0)")


def long_integer_sums(torch, device):
    """F14: cumsum of int64 was computed in 32 bits (pytorch#90635)."""
    x = torch.tensor([2_000_000_000] * 3).to(device)
    expected = [2_000_000_000, 4_000_000_000, 6_000_000_000]
    return _describe_difference(x.cumsum(0).tolist(), expected, "cumsum of int64 beyond 32 bits")


def boolean_fill_at_offset(torch, device):
    """F14: fill_ on a boolean view with a storage offset filled other elements (pytorch#183631)."""
    x = torch.zeros(8, dtype=torch.bool, device=device)
    x[3:6].fill_(True)
    expected = [False] * 3 + [True] * 3 + [False] * 2
    return _describe_difference(x.tolist(), expected, "fill_(True) on elements 3 to 5 of a boolean tensor")


CANARIES = {
    "F01": (scalar_writes,),
    "F04": (boolean_counts,),
    "F11": (long_products,),
    "F12": (expanded_gradients,),
    "F13": (writes_into_gaps, random_into_gaps, convolution_weight_strides),
    "F14": (greatest_with_nan, sorted_columns, long_integer_sums, boolean_fill_at_offset),
}
"""Signature id -> the canaries that test for it."""


def run_all(torch, device):
    """Return [{"id", "canary", "about", "wrong"}]. `wrong` is None if the device is right."""
    results = []
    for signature, canaries in CANARIES.items():
        for canary in canaries:
            try:
                wrong = canary(torch, device)
            except Exception as error:
                wrong = "raised %s: %s" % (type(error).__name__, str(error).split("\n")[0][:200])
            # Without docstrings (`python -OO`), use the name.
            about = (canary.__doc__ or canary.__name__.replace("_", " ")).split(": ", 1)[-1]
            results.append({"id": signature, "canary": canary.__name__, "about": about, "wrong": wrong})
    return results


def _describe_difference(actual, expected, what):
    return None if actual == expected else "%s gives %s instead of %s" % (what, _short(actual), _short(expected))


def _short(value):
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."


def _generator_state(torch, device):
    """Return the state of the device's random generator. A canary draws numbers, which must not affect the training."""
    module = getattr(torch, torch.device(device).type, torch)
    return module.get_rng_state() if hasattr(module, "get_rng_state") else torch.get_rng_state()


def _restore_generator(torch, device, state):
    module = getattr(torch, torch.device(device).type, torch)
    (module if hasattr(module, "set_rng_state") else torch).set_rng_state(state)


def main(device):
    import torch

    print(json.dumps(run_all(torch, device)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
