"""The record of one operator whose result differs from the CPU's."""

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Optional


@dataclass(frozen=True)
class Finding:
    operator: str
    """With its overload: "aten.addcdiv_.default"."""
    step: int
    phase: str
    """forward, backward or optimizer."""
    kind: str
    """zero, values, not-finite, finite, not-written, written-elsewhere, integers, selection, count, shape, dtype, raises."""
    message: str
    """What is wrong, as a phrase."""
    where: str
    """The name of the result or argument."""
    figures: Dict[str, Any]
    """wrong, of, max_abs, max_rel, tolerance, example: those that apply to this kind."""
    tensors: List[Dict[str, Any]]
    """The arguments: argument, shape, stride, dtype, device, offset, contiguous, elements, storage."""
    scalars: Dict[str, Any]
    """Arguments that are not tensors."""
    place: Dict[str, str]
    """called, yours: lines of Python code; node: the autograd node, in a backward."""
    known: Optional[Dict[str, Any]]
    contiguous_helps: Optional[bool]
    """Whether the same call was right with contiguous tensors. None if all were contiguous, or it was not tried."""
    steady: Optional[bool]
    """Whether the same call was wrong again. False means a race or chance. None if it could not be repeated."""
    workaround: str

    def as_dict(self):
        return asdict(self)


def describe_tensor(argument, tensor):
    return {
        "argument": argument,
        "shape": list(tensor.shape),
        "stride": list(tensor.stride()),
        "dtype": str(tensor.dtype).replace("torch.", ""),
        "device": str(tensor.device),
        "offset": tensor.storage_offset(),
        "contiguous": tensor.is_contiguous(),
        "elements": tensor.numel(),
        "storage": tensor.untyped_storage().nbytes() // max(1, tensor.element_size()),
    }


def choose_workaround(name, kind, known, contiguous_helps, steady):
    if contiguous_helps:
        return "call .contiguous() on the arguments of %s: then the result is right on this device" % name
    if steady is False:
        return "the same call was right when repeated: synchronize before it, avoid non_blocking copies, or use another device"
    if kind == "raises":
        return known["remedy"] if known else "run %s on the CPU, or install a newer torch" % name
    cpu = "run %s on the CPU (x.cpu(), and back)" % name
    return "%s; or: %s" % (cpu, known["remedy"]) if known else "%s, install a newer torch, or use another device" % cpu
