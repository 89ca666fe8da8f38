"""Publicly known bugs of operators. A finding that matches one links to it. `P#` is an issue of pytorch/pytorch.

Each entry tests the operator, the kind of error, and the memory layout of its tensors. A match is a hint, not a proof.
"""

from .precision import MATRIX

LONG_REDUCTION = 32767


class KnownIssue(object):
    def __init__(self, name, issues, matches, remedy, layout=False):
        self.name = name
        self.issues = issues
        self.matches = matches
        self.remedy = remedy
        self.layout = layout
        """Whether the bug disappears with contiguous tensors."""

    def as_dict(self):
        return {"id": self.name, "issues": list(self.issues), "remedy": self.remedy}


def find_known_issue(case):
    """Return the first entry that matches as a dictionary, or None. `case` is a `Case`."""
    for entry in ENTRIES:
        if entry.matches(case) and not (entry.layout and case.contiguous_helps is False):
            return entry.as_dict()
    return None


class Case(object):
    """The facts about a finding that an entry can test."""

    def __init__(self, name, kind, tensors, values, contiguous_helps=None, raised=""):
        self.name = name
        """The operator's name without namespace and overload."""
        self.kind = kind
        self.tensors = tensors
        """The descriptions of the arguments, as in the finding."""
        self.values = values
        """The arguments by name, with the tensors of the CPU's copy."""
        self.contiguous_helps = contiguous_helps
        self.raised = raised

    def first_tensor(self):
        return self.tensors[0] if self.tensors else {}

    def has_expanded_tensor(self):
        return any(
            stride == 0 and size > 1
            for tensor in self.tensors
            if "float" in tensor["dtype"]
            for size, stride in zip(tensor["shape"], tensor["stride"])
        )

    def argument(self, name):
        return next((tensor for tensor in self.tensors if tensor["argument"] == name), None)

    def reduction_size(self):
        """Return the size of the dimension that a product sums over."""
        for name, dim in (("mat1", -1), ("self", -1), ("batch1", -1), ("input", -1)):
            tensor = self.argument(name)
            if tensor is not None and tensor["shape"] and (name != "self" or self.argument("mat1") is None):
                return tensor["shape"][dim]
        return 0


def _is_one_element_view(case):
    first_tensor = case.first_tensor()
    return bool(first_tensor) and first_tensor["elements"] == 1 and first_tensor["storage"] > 1


def _writes_noncontiguous(case):
    """Return whether the operator writes in place to a non-contiguous tensor."""
    return case.name.endswith("_") and bool(case.first_tensor()) and not case.first_tensor()["contiguous"]


def _has_boolean_index(case):
    return any(tensor["dtype"] == "bool" for tensor in case.tensors)


def _raises_with(text):
    return lambda case: case.kind == "raises" and text in case.raised


ENTRIES = (
    KnownIssue("F18", ["P#122602"], _raises_with("float64"), "use float32 on this device"),
    KnownIssue(
        "F19", ["P#77764"], _raises_with("not currently implemented"), "install a newer torch, or set PYTORCH_ENABLE_MPS_FALLBACK=1 before torch is imported"
    ),
    KnownIssue("F06", ["P#142344", "P#143196"], _raises_with("view size is not compatible"), "install a newer torch, or do not use channels_last"),
    KnownIssue(
        "F01",
        ["P#122016", "P#123385"],
        lambda case: case.name in ("copy_", "fill_", "index_put_") and _is_one_element_view(case),
        "install torch 2.3 or newer",
    ),
    KnownIssue(
        "F04",
        ["P#181867", "P#178497"],
        lambda case: case.kind in ("count", "raises") and case.name in ("index", "nonzero", "masked_select", "index_put_") and (case.name == "nonzero" or _has_boolean_index(case)),
        "install the newest torch, or index on the CPU",
    ),
    KnownIssue("F05", ["ultralytics#14658"], lambda case: "unique" in case.name, "install a newer torch, or run unique on the CPU"),
    KnownIssue(
        "F11",
        ["P#177116", "P#183535"],
        lambda case: case.name in MATRIX and case.reduction_size() >= LONG_REDUCTION,
        "install torch 2.14 or newer, or set PYTORCH_MPS_PREFER_METAL=1",
    ),
    KnownIssue(
        "F13",
        ["P#192212"],
        lambda case: case.name == "convolution" and bool(case.argument("weight")) and not case.argument("weight")["contiguous"],
        "use weight.contiguous()",
        layout=True,
    ),
    KnownIssue(
        "F14",
        ["P#183631"],
        lambda case: case.name == "fill_" and case.first_tensor().get("dtype") == "bool" and case.first_tensor().get("offset", 0) > 0,
        "install a newer torch, or fill a contiguous tensor and copy it",
    ),
    KnownIssue(
        "F13",
        ["P#118115", "P#165267"],
        _writes_noncontiguous,
        "make the destination contiguous, or install torch 2.4 or newer and macOS 15 or newer",
        layout=True,
    ),
    KnownIssue("F14", ["P#130295"], lambda case: case.name in ("argmax", "argmin", "max", "min") and case.kind == "selection", "install a newer torch, or run it on the CPU"),
    KnownIssue("F14", ["P#183885"], lambda case: case.name in ("sort", "argsort") and case.values.get("dim") == 0, "install a newer torch, or sort along the last dimension"),
    KnownIssue("F14", ["P#90635"], lambda case: case.name.startswith("cumsum") and case.first_tensor().get("dtype") == "int64", "install a newer torch, or run cumsum on the CPU"),
    KnownIssue("F12", ["P#180201"], lambda case: case.has_expanded_tensor(), "call .contiguous() on the expanded tensor", layout=True),
    KnownIssue(
        "F02",
        ["P#139550", "P#189690"],
        lambda case: case.name in ("_to_copy", "copy_") and bool(case.values.get("non_blocking")),
        "do not use non_blocking copies to this device",
    ),
)  # fmt: skip
