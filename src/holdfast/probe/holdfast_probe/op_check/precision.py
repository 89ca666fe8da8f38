"""The precision with which a device computes, so that rounding is not mistaken for an error.

The precision follows from a tensor's dtype or from a flag (TF32). If there is no flag, it is measured: the product of two
matrices shows how many bits were kept. A measurement counts only if numbers that every format can represent come out
exactly: rounding loses digits of 0.1, never of 3. So a device that computes wrong results is not mistaken for one that
rounds.
"""

from .cpu_mirror import to_host

FLOAT32 = 2.0**-23
TF32 = 2.0**-10
BF16 = 2.0**-7
FORMATS = ((FLOAT32, 32.0), (TF32, 4.0), (BF16, 4.0))
"""The spacing of numbers near 1, and how many of these units the measured result may be off by."""
MAX_FUNCTION_SPACING = 2.0**-18
"""Fast versions of exp or sin are less accurate than rounding. Beyond this they are wrong."""

MATRIX = frozenset([
    "mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", "linear", "convolution", "_convolution",
    "convolution_overrideable", "convolution_backward", "convolution_backward_overrideable", "cudnn_convolution", "miopen_convolution",
    "_mps_convolution", "mps_convolution_backward", "slow_conv2d_forward", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_attention_math", "_scaled_dot_product_attention_math_for_mps",
    "_scaled_dot_product_flash_attention_for_cpu", "linear_backward", "_trilinear", "_addmm_activation", "addmm_", "baddbmm_",
    "lstm_mps", "_lstm_mps", "_thnn_fused_lstm_cell", "_cudnn_rnn", "_cdist_forward",
])  # fmt: skip
FUNCTIONS = frozenset([
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "sigmoid", "silu", "gelu", "mish", "softplus", "erf", "erfc",
    "erfinv", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "pow", "sqrt", "rsqrt", "reciprocal", "_softmax",
    "_log_softmax", "logsumexp", "elu", "log_sigmoid_forward", "log_sigmoid_backward", "binary_cross_entropy", "logit", "lgamma",
    "digamma", "tanh_backward", "sigmoid_backward", "silu_backward", "gelu_backward", "mish_backward", "softplus_backward",
    "elu_backward", "_softmax_backward_data", "_log_softmax_backward_data", "binary_cross_entropy_backward", "addcdiv", "div", "norm",
    "linalg_vector_norm", "native_batch_norm", "native_batch_norm_backward", "native_layer_norm", "native_layer_norm_backward",
    "native_group_norm", "native_group_norm_backward", "_native_batch_norm_legit", "batch_norm_backward", "cudnn_batch_norm",
    "binary_cross_entropy_with_logits", "binary_cross_entropy_with_logits_backward", "std", "var_mean", "hypot",
])  # fmt: skip


class Precision(object):
    """The precision of one device."""

    def __init__(self, torch, device):
        self._torch = torch
        self._device = device
        self.matrix = self.plain = self.functions = FLOAT32
        self.how = "from the dtypes"
        self._calibrate()

    def spacing_for(self, name, dtype):
        """Return the spacing of numbers near 1 to which this operator may round numbers of this type."""
        finfo = self._torch.finfo(dtype)
        if finfo.eps < FLOAT32 / 2:  # float64 is never computed with less precision silently
            return finfo.eps
        if name in MATRIX or name.startswith("_foreach_addmm"):
            return max(finfo.eps, self.plain, self.matrix, self._allowed_spacing(name))
        base = name.removeprefix("_foreach_")
        if base.rstrip("_") in FUNCTIONS:
            return max(finfo.eps, self.functions)
        return max(finfo.eps, self.plain)

    def as_dict(self):
        return {"matrix": self.matrix, "plain": self.plain, "functions": self.functions, "how": self.how}

    def _allowed_spacing(self, name):
        """Return the spacing that the user allows on CUDA. It may change between two calls."""
        torch = self._torch
        if self._device.type != "cuda":
            return 0.0
        try:
            convolution = "conv" in name
            allowed = torch.backends.cudnn.allow_tf32 if convolution else torch.backends.cuda.matmul.allow_tf32
            if not convolution and torch.get_float32_matmul_precision() == "medium":
                return BF16
            return TF32 if allowed else 0.0
        except Exception:
            return TF32

    # --- measurements --------------------------------------------------------------------------------------------

    def _calibrate(self):
        torch = self._torch
        generator = torch.Generator("cpu").manual_seed(0)
        try:
            self.plain = self._measure_plain(generator)
            self.matrix = self._measure_products(generator)
            self.functions = self._measure_functions(generator)
            if self.plain > FLOAT32 or self.matrix > FLOAT32:
                self.how = "measured: this device keeps fewer bits than its dtypes have"
        except Exception as error:
            self.how = "from the dtypes: the measurement failed (%s)" % str(error)[:100]

    def _on_device(self, function, *tensors):
        return to_host(self._torch, function(*[tensor.to(self._device) for tensor in tensors]))

    def _random(self, generator):
        return self._torch.rand(256, generator=generator, dtype=self._torch.float32, device="cpu")

    def _measure_products(self, generator):
        torch = self._torch
        integers = [
            torch.randint(-1, 2, shape, generator=generator, device="cpu").float() for shape in ((24, 40), (40, 24))
        ]
        if not torch.equal(self._on_device(torch.mm, *integers), torch.mm(*integers)):
            return FLOAT32
        a, b = (
            torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu") for shape in ((32, 64), (64, 32))
        )
        exact = a.double() @ b.double()
        error = (self._on_device(torch.mm, a, b).double() - exact).abs()
        noise = (a.double().square() @ b.double().square()).sqrt() + exact.abs()
        return _find_format((error / noise).max().item())

    def _measure_plain(self, generator):
        torch = self._torch
        integers = [torch.randint(1, 9, (256,), generator=generator, device="cpu").float() for _ in range(2)]
        if not torch.equal(self._on_device(torch.mul, *integers), torch.mul(*integers)):
            return FLOAT32
        a, b = (self._random(generator) + 0.5 for _ in range(2))
        exact = a.double() * b.double()
        error = (self._on_device(torch.mul, a, b).double() - exact).abs()
        return _find_format((error / exact).max().item())

    def _measure_functions(self, generator):
        torch = self._torch
        worst = 0.0
        x = self._random(generator) * 3 + 0.25
        for function in (torch.exp, torch.log1p, torch.tanh, torch.sigmoid, torch.sqrt, torch.sin):
            exact = function(x.double())
            # Relative to the overall size of the result: near its zero, sin is no more accurate than its argument.
            error = (self._on_device(function, x).double() - exact).abs() / exact.abs().clamp(min=0.1)
            worst = max(worst, error.max().item())
        return max(self.plain, min(worst, MAX_FUNCTION_SPACING), FLOAT32)


def _find_format(units):
    for spacing, max_units in FORMATS:
        if units <= spacing * max_units:
            return spacing
    return FLOAT32
