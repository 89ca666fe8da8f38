"""The line of Python that an operator comes from."""

import os
import re
import sys

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIBRARIES = ("site-packages", "dist-packages")
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


class SourceLocation(object):
    def __init__(self, torch):
        self._torch = torch
        self._torch_folder = os.path.dirname(os.path.abspath(torch.__file__))
        self._node = getattr(torch._C, "_current_autograd_node", None)

    def now(self, phase):
        """`called`: the innermost line outside of torch; `yours`: the innermost that no library has. Either may be missing."""
        if phase == "backward":
            return self._of_forward()
        frames = []
        frame = sys._getframe(1)
        while frame is not None:
            if not isinstance(
                frame.f_locals.get("self"), self._torch.Tensor
            ):  # a tensor's own methods are nobody's line
                frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
            frame = frame.f_back
        return self._chosen(frames)

    def remember_forward(self):
        """Has autograd keep where each of its nodes was made: the only way from a backward to a line of the forward."""
        try:
            self._torch.autograd.set_detect_anomaly(True, check_nan=False)
        except TypeError:  # an old torch, which would look for NaN as well
            pass

    def _of_forward(self):
        node = self._node() if self._node is not None else None
        if node is None:
            return {}
        lines = node.metadata.get("traceback_") or []
        found = [match for line in reversed(lines) for match in [_FRAME.search(line)] if match]
        place = self._chosen([(match.group(1), int(match.group(2)), match.group(3)) for match in found])
        place["node"] = node.name()
        return place

    def _chosen(self, frames):
        """`frames` from the innermost outwards."""
        place = {}
        for file, line, name in frames:
            if file.startswith((self._torch_folder, HERE, "<")):
                continue
            text = "%s:%d in %s" % (file, line, name)
            place.setdefault("called", text)
            if not any(library in file for library in LIBRARIES):
                place["yours"] = text
                break
        return place
