"""Texts as they were printed in the field: each end is explained by the rule that knows it, and by no other."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.diagnosis import versions
from holdfast.diagnosis.causes import cause_of
from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.exits import exception_line, exception_words, frames_of, match_exception, own_frame
from holdfast.diagnosis.output_patterns import find_needle, needles, rules_matching
from holdfast.diagnosis.rules import all_rules, by_id
from holdfast.diagnosis.run_state import RunState
from holdfast.diagnosis.versions import Versions
from holdfast.frameworks.ultralytics.console import find_banner
from holdfast.importers.base import Banner
from holdfast.remedies.policy import ends_attempt
from holdfast.schema import events
from holdfast.schema.plan import Plan
from holdfast.storage.journal import Entry
from holdfast.testing.histories import TRACEBACK, ended, entries, losses, started, trains
from holdfast.testing.signatures import device, on_mac, printed, unknown_machine


def seen(*parts):
    state = RunState()
    engine = Engine(state)
    for entry in entries([event for part in parts for event in part]):
        for finding in engine.take(entry):
            state.fold(Entry(events.FindingMade(at=0.0, finding=finding), 1))
    return state


def found(state, rule):
    return next(finding for finding in state.findings if finding.rule == rule)


SITE = "/Users/bob/.venv/lib/python3.12/site-packages"

ASSIGNER = f"""\
Traceback (most recent call last):
  File "/Users/bob/sku110k.py", line 12, in <module>
    results = model.train(
              ^^^^^^^^^^^^
  File "{SITE}/ultralytics/engine/trainer.py", line 427, in _do_train
    loss, self.loss_items = self.model(batch)
                            ^^^^^^^^^^^^^^^^^
  File "{SITE}/ultralytics/utils/tal.py", line 198, in get_box_metrics
    bbox_scores[mask_gt] = pd_scores[ind[0], :, ind[1]][mask_gt]  # b, max_num_obj, h*w
    ~~~~~~~~~~~^^^^^^^^^
RuntimeError: shape mismatch: value tensor of shape [78124] cannot be broadcast to indexing result of shape [78093]"""

NEGATIVE = f"""\
Traceback (most recent call last):
  File "{SITE}/ultralytics/utils/loss.py", line 217, in __call__
    targets = self.preprocess(targets.to(self.device), batch_size, scale_tensor=imgsz[[1, 0, 1, 0]])
  File "{SITE}/ultralytics/utils/loss.py", line 181, in preprocess
    out = torch.zeros(batch_size, counts.max(), 5, device=self.device)
RuntimeError: Trying to create tensor with negative dimension -1: [2, -1, 5]"""

BACKWARD_VIEW = f"""\
Traceback (most recent call last):
  File "/Users/bob/vocos/irritating.py", line 20, in <module>
    loss.backward()
  File "{SITE}/torch/_tensor.py", line 624, in backward
    torch.autograd.backward(
  File "{SITE}/torch/autograd/__init__.py", line 347, in backward
    _engine_run_backward(
  File "{SITE}/torch/autograd/graph.py", line 825, in _engine_run_backward
    return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
RuntimeError: view size is not compatible with input tensor's size and stride (at least one dimension spans across two \
contiguous subspaces). Use .reshape(...) instead."""

MPS_MEMORY = """\
Traceback (most recent call last):
  File "/Users/bob/train.py", line 88, in <module>
    loss.backward(**kwargs)
RuntimeError: MPS backend out of memory (MPS allocated: 11.14 GB, other allocations: 6.65 GB, max allowed: 18.13 GB). Tried \
to allocate 375.40 MB on private pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations \
(may cause system failure)."""

WATERMARK = """\
Traceback (most recent call last):
  File "/Users/bob/train_network.py", line 873, in <module>
    unet.to(accelerator.device)
RuntimeError: invalid low watermark ratio 1.4"""

COMMITTED = """\
-[IOGPUMetalCommandBuffer validate]:213: failed assertion `commit an already committed command buffer'
Abort trap: 6"""

ENCODING = """\
-[_MTLCommandBuffer tryCoalescingPreviousComputeCommandEncoderWithConfig:nextEncoderClass:]:1090: failed assertion `A command \
encoder is already encoding to this command buffer'"""

FLOAT64 = """\
Traceback (most recent call last):
  File "/Users/bob/inference.py", line 329, in <module>
    F0_alt = torch.from_numpy(F0_alt).to(device)[None]
TypeError: Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. Please use float32 instead."""

OPERATOR = """\
Traceback (most recent call last):
  File "/Users/bob/train.py", line 40, in <module>
    loss.backward()
NotImplementedError: The operator 'aten::grid_sampler_2d_backward' is not currently implemented for the MPS device. If you want \
this op to be added in priority during the prototype phase of this feature, please comment on \
https://github.com/pytorch/pytorch/issues/77764. As a temporary fix, you can set the environment variable \
`PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback for this op. WARNING: this will be slower than running natively on MPS."""

FORKED = """\
objc[3067]: +[__NSCFConstantString initialize] may have been in progress in another thread when fork() was called.
objc[3067]: +[__NSCFConstantString initialize] may have been in progress in another thread when fork() was called. We cannot \
safely call it or ignore it in the fork() child process. Crashing instead. Set a breakpoint on objc_initializeAfterForkError to debug.
Traceback (most recent call last):
  File "/Users/bob/train.py", line 19, in <module>
    for batch in loader:
RuntimeError: DataLoader worker (pid 3067) is killed by signal: Abort trap: 6."""

SHARED = f"""\
Traceback (most recent call last):
  File "{SITE}/torch/utils/data/dataloader.py", line 1036, in __init__
    w.start()
  File "{SITE}/torch/multiprocessing/reductions.py", line 557, in reduce_storage
    metadata = storage._share_filename_cpu_()
RuntimeError: _share_filename_: only available on CPU"""

OPENMP = """\
OMP: Error #15: Initializing libomp.dylib, but found libiomp5.dylib already initialized.
OMP: Hint This means that multiple copies of the OpenMP runtime have been linked into the program. That is dangerous, since it can \
degrade performance or cause incorrect results. The best thing to do is to ensure that only a single OpenMP runtime is linked into \
the process, e.g. by avoiding static linking of the OpenMP runtime in any library. As an unsafe, unsupported, undocumented \
workaround you can set the environment variable KMP_DUPLICATE_LIB_OK=TRUE to allow the program to continue to execute, but that may \
cause crashes or silently produce incorrect results. For more information, please see http://openmp.llvm.org/"""

FAISS = f"""\
Fatal Python error: Segmentation fault

Current thread 0x000000020534cf40 (most recent call first):
  File "{SITE}/faiss/class_wrappers.py", line 329 in replacement_search
  File "/Users/bob/retriever.py", line 212 in mine_negatives"""

TORCHVISION = """\
Traceback (most recent call last):
  File "/home/ann/test_nms.py", line 1, in <module>
    from torchvision.ops import nms
    if torch._C._dispatch_has_kernel_for_dispatch_key(self.qualname, "Meta"):
RuntimeError: operator torchvision::nms does not exist"""

TORN = f"""\
Traceback (most recent call last):
  File "{SITE}/torch/serialization.py", line 771, in __init__
    super().__init__(torch._C.PyTorchFileReader(name_or_buffer))
RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"""

DISK = """\
Traceback (most recent call last):
  File "/home/ann/train.py", line 9, in <module>
    torch.save(state, path)
RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 1152 vs 1046

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/home/ann/train.py", line 12, in <module>
    log.write(line)
OSError: [Errno 28] No space left on device"""

MAC, LINUX, SOMEWHERE = on_mac(), [*started(), *trains()], unknown_machine()
ENDS = [
    ("F04 the assigner", MAC, 1, ASSIGNER, "assigner-shape-mismatch"),
    ("F04 in a log of unknown origin", SOMEWHERE, 1, ASSIGNER, "assigner-shape-mismatch"),
    ("F05 labels counted below zero", on_mac("2.3.1", "14.3"), 1, NEGATIVE, "label-count-negative"),
    ("F06 backward of channels-last", on_mac("2.5.1"), 1, BACKWARD_VIEW, "backward-view-incompatible"),
    ("F06 is python's own elsewhere", LINUX, 1, BACKWARD_VIEW, "python-exception"),
    ("F09 the watermark's limit", MAC, 1, MPS_MEMORY, "device-out-of-memory"),
    ("F10 marks that contradict", MAC, 1, WATERMARK, "watermark-invalid"),
    ("F16 committed twice", MAC, "SIGABRT", COMMITTED, "command-buffer-reused"),
    ("F16 committed twice, through a shell", MAC, 134, COMMITTED, "command-buffer-reused"),
    ("F16 two encoders", MAC, "SIGABRT", ENCODING, "command-buffer-reused"),
    ("F18 float64", MAC, 1, FLOAT64, "float64-unsupported"),
    ("F19 an operator", MAC, 1, OPERATOR, "op-not-implemented"),
    ("F20 forked after Metal", MAC, 1, FORKED, "fork-after-metal"),
    ("F20 a device tensor for a worker", MAC, 1, SHARED, "fork-after-metal"),
    ("F25 two runtimes", MAC, "SIGABRT", OPENMP, "openmp-duplicate"),
    ("F25 two runtimes, through a shell", SOMEWHERE, 134, OPENMP, "openmp-duplicate"),
    ("F25 a crash in FAISS", MAC, "SIGSEGV", FAISS, "openmp-duplicate"),
    ("a crash in FAISS elsewhere", LINUX, "SIGSEGV", FAISS, "crashed-segfault"),
    ("F26 torchvision of another torch", LINUX, 1, TORCHVISION, "torchvision-mismatch"),
    ("a torn file", LINUX, 1, TORN, "checkpoint-torn"),
    ("a full disk, found out in two ways", LINUX, 1, DISK, "disk-full"),
]

GENERAL = ("python-exception", "crashed-segfault", "disk-full")


@pytest.mark.parametrize(("before", "how", "text", "cause"), [end[1:] for end in ENDS], ids=[end[0] for end in ENDS])
def test_recorded_end_has_its_cause(before, how, text, cause):
    """The specific explanation outranks the general one, and says where it comes from."""
    end = ended(signal=how, words=text.split("\n")) if isinstance(how, str) else ended(how, words=text.split("\n"))
    state = seen(before, losses(1.0), end)
    assert cause_of(state.attempt) == cause
    finding = found(state, cause)
    assert finding.remedies
    if cause not in GENERAL:
        assert finding.evidence[0] in text
        assert "Sources:" in by_id()[cause].page


@pytest.mark.parametrize(("text", "cause"), [(end[3], end[4]) for end in ENDS], ids=[end[0] for end in ENDS])
def test_the_same_words_in_passing_explain_nothing(text, cause):
    """A training that prints them and ends well, or that is stopped on purpose, is not accused."""
    for end in (ended(0, words=text.split("\n")), ended(1, words=text.split("\n"), stopped_by="user")):
        assert not [finding for finding in seen(MAC, losses(1.0), end).findings if finding.severity != "note"]


@pytest.mark.parametrize("text", sorted({end[3] for end in ENDS if end[3].startswith("Traceback")}))
def test_an_exception_that_was_caught_before_is_not_the_cause(text):
    """What ended it is the last traceback; an earlier one that was printed and survived is not."""
    words = [
        *text.split("\n"),
        "skipped this batch",
        "Traceback (most recent call last):",
        '  File "t.py"',
        "KeyError: 'a'",
    ]
    assert cause_of(seen(MAC, losses(1.0), ended(1, words=words)).attempt) == "python-exception"


@pytest.mark.parametrize(
    ("observe_only", "line", "mended"),
    [
        (True, "RuntimeError: operator torchvision::nms does not exist", True),
        (True, "RuntimeError: Couldn't load custom C++ ops.", True),
        (True, "RuntimeError: operator torchvision::roi_align does not exist", False),
        (False, "RuntimeError: operator torchvision::nms does not exist", False),
    ],
)
def test_who_only_watches_is_told_what_would_be_mended(observe_only, line, mended):
    """Holdfast stands in for nms, unless it may change nothing: then it says so."""
    first, *rest = started()
    history = [msgspec.structs.replace(first, observe_only=observe_only), *rest, *ended(1, words=[*TRACEBACK, line])]
    finding = seen(history).attempt.find_finding("torchvision-mismatch")
    assert finding.remedies[0].startswith("run it without --observe-only") == mended


def test_memory_message_is_read():
    """The numbers are in the sentence; where the driver holds the most, that comes first; no limit at all comes last."""
    finding = found(seen(MAC, losses(1.0), ended(1, words=MPS_MEMORY.split("\n"))), "device-out-of-memory")
    assert "tensors 11.14 GB, driver 6.65 GB, limit 18.13 GB; 375.40 MB more requested" in finding.message
    assert finding.remedies[0].startswith("halve the batch")
    assert "WATERMARK_RATIO=0.0" in finding.remedies[-1]
    bloated = MPS_MEMORY.replace(
        "MPS allocated: 11.14 GB, other allocations: 6.65 GB", "MPS allocated: 1.45 GB, other allocations: 7.42 GB"
    )
    finding = found(seen(MAC, ended(1, words=bloated.split("\n"))), "device-out-of-memory")
    assert finding.remedies[0].startswith("the driver uses more memory")


def test_operator_is_named():
    finding = found(seen(MAC, ended(1, last_step=0, words=OPERATOR.split("\n"))), "op-not-implemented")
    assert "aten::grid_sampler_2d_backward" in finding.message


def test_watermark_says_what_to_set():
    before = on_mac(environment={"PYTORCH_MPS_HIGH_WATERMARK_RATIO": "0.7"})
    finding = found(seen(before, ended(1, last_step=0, words=WATERMARK.split("\n"))), "watermark-invalid")
    assert "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.7 PYTORCH_MPS_LOW_WATERMARK_RATIO=0.6" in finding.remedies[0]


def test_report_002_is_not_blamed_on_accumulation():
    """Two runs that crashed at different batches: with the signal and the last words it is two OpenMP runtimes."""
    finding = found(seen(MAC, losses(1.0), ended(signal="SIGABRT", words=OPENMP.split("\n"))), "openmp-duplicate")
    assert "accumulation" in finding.message
    assert "are not the cause" in finding.message
    assert finding.confidence == "proven"


def test_upgrade_is_proposed_only_where_it_helps():
    """Somebody who has the version already is not told to install it."""
    end = ended(signal="SIGABRT", words=COMMITTED.split("\n"))
    old = found(seen(on_mac("2.13.0"), end), "command-buffer-reused")
    new = found(seen(on_mac("2.15.0"), end), "command-buffer-reused")
    assert "install torch 2.14 or newer (this run used 2.13.0)" in old.remedies
    assert "install the newest torch: this run used 2.15.0" in new.remedies


def test_gpu_that_gave_up_ends_a_living_attempt():
    """The run would go on with garbage: it is stopped, and what was saved before is what counts."""
    line = printed("command-buffer-failed", "Error: command buffer exited with error status.")
    finding = found(seen(MAC, losses(1.0, 0.9, 0.8), line), "command-buffer-failed")
    assert ends_attempt(finding, Plan(command=["x"], cwd="/"))
    assert finding.corrupt_from == 3
    assert not seen(MAC, losses(1.0), device("cuda:0"), line).findings


@pytest.mark.parametrize(
    ("line", "rules"),
    [
        ("Error: command buffer exited with error status.", ["command-buffer-failed"]),
        (" 40%|██▊ | 12/30 [36:03<53:52]Error: command buffer exited with error status.", ["command-buffer-failed"]),
        ("\tInsufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", ["command-buffer-failed"]),
        ("WARNING ⚠️ NMS time limit 2.800s exceeded", ["nms-cut-short"]),
        ("WARNING: NMS time limit 10.0s exceeded", ["nms-cut-short"]),
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 0.0005, 'epoch': 0.01}", ["nan-logged-as-zero"]),
        ("{'loss': '0', 'grad_norm': 'nan', 'learning_rate': '5e-05'}", ["nan-logged-as-zero"]),
        ("{'loss': 5.3575, 'grad_norm': nan, 'learning_rate': 1.1e-05}", []),
        ("{'train_runtime': 31289.7552, 'train_loss': 0.0, 'epoch': 1.5}", []),
        ("WARNING ⚠️ Loss NaN/Inf detected (attempt 1/3), recovering from last.pt...", ["rolled-back-after-nan"]),
        ("WARNING ⚠️ no labels found in detect set, cannot compute metrics without labels", ["labels-missing"]),
        ("WARNING ⚠️ no labels found in detect set, can not compute metrics without labels", ["labels-missing"]),
        (
            "WARNING ⚠️ val: No labels found in /data/val/labels.cache. See https://docs.ultralytics.com",
            ["labels-missing"],
        ),
        ("No labels found for 3 images, using background", []),
        (
            "WARNING ⚠️ CUDA out of memory with batch=16. Reducing to batch=8 and retrying (1/3).",
            ["device-out-of-memory"],
        ),
        ("will fall back to run on the CPU. This may have performance implications.", ["op-not-implemented"]),
        ("Epoch 12/100   4.57G  1.231  0.982  1.104  57  640: 100%|####| 120/120 [00:12<00:00]", []),
        ("", []),
    ],
)
def test_line_is_known(line, rules):
    """The same function serves a living training and a log that nobody watched; the quick look never misses a line."""
    assert rules_matching(line) == rules
    assert not rules or any(needle in line.lower().encode() for needle in needles())


def test_words_can_be_looked_for_quickly():
    """Each holds a plain text that can be searched for."""
    for rule in all_rules():
        for word in rule.words:
            assert len(find_needle(word)) >= 5, (rule.id, word)


@pytest.mark.parametrize(
    ("word", "needle"),
    [
        (r"NMS time limit \d+\.\d+s exceeded", "NMS time limit "),
        (r"(?i:\bearly[ _-]?stop)", "early"),
        (r"colou?rs? of lines", " of lines"),
        (r"a{2,3}bcd\.e", "bcd.e"),
        (r"ab(?:long alternative|x)cde", "cde"),
        (r"(?:optional part)?tail", "tail"),
        (r"one|other", ""),
        (r"\(0000000[0-9a-f]:kIOGPU\w+\)", "(0000000"),
    ],
)
def test_needle_is_in_every_line_that_matches(word, needle):
    assert find_needle(word) == needle


def words_of(*lines):
    return ended(1, words=lines)[0]


def test_exceptions_that_led_to_one_another_belong_together():
    chained = words_of(
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "RuntimeError: CUDA out of memory.",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "a.py", line 3, in f',
        "ValueError: could not report it",
    )
    assert exception_line(chained) == "ValueError: could not report it"
    assert match_exception(chained, "out of memory") == "RuntimeError: CUDA out of memory."


def test_ranks_are_heard_behind_their_launcher():
    """Under torchrun the last traceback is the launcher's own, and each rank's lines bear its number."""
    ended_rank = words_of(
        "[rank0]: Traceback (most recent call last):",
        '[rank0]:   File "train.py", line 9, in <module>',
        "[rank0]: TypeError: Cannot convert a MPS Tensor to float64 dtype",
        "Traceback (most recent call last):",
        '  File "/venv/bin/torchrun", line 8, in <module>',
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    )
    assert match_exception(ended_rank, "float64") == "TypeError: Cannot convert a MPS Tensor to float64 dtype"
    assert exception_line(ended_rank) == "TypeError: Cannot convert a MPS Tensor to float64 dtype"
    assert frames_of(ended_rank) == ['File "train.py", line 9, in <module>']


def test_any_class_can_be_raised():
    """Its name need not end in Error, its message may have lines that look like one, and the frame to mend is one's own."""
    raised_inside = words_of(
        "Traceback (most recent call last):",
        '  File "/home/ann/train.py", line 9, in <module>',
        "    step(batch)",
        '  File "/venv/lib/python3.11/site-packages/torch/_dynamo/exc.py", line 300, in unimplemented',
        "    raise Unsupported(msg)",
        "torch._dynamo.exc.Unsupported: Data-dependent branching",
        "  Explanation: Detected data-dependent branching (e.g. `if my_tensor.sum() > 0:`).",
        "",
        "OtherError: set TORCHDYNAMO_VERBOSE=1",
    )
    assert exception_line(raised_inside) == "torch._dynamo.exc.Unsupported: Data-dependent branching"
    frames = frames_of(raised_inside)
    assert own_frame(frames) == 'File "/home/ann/train.py", line 9, in <module>'
    assert own_frame(frames[1:]) is None


def test_traceback_in_a_box_is_one():
    """As rich draws them."""
    boxed = words_of(
        "╭───────────── Traceback (most recent call last) ─────────────╮",
        "│ /work/train.py:3 in <module>                                │",
        "╰──────────────────────────────────────────────────────────────╯",
        "ValueError: bad shape",
    )
    assert exception_line(boxed) == "ValueError: bad shape"


def test_without_a_traceback_all_words_count():
    assert exception_words(words_of("error: CUDA out of memory", "bye")) == ["error: CUDA out of memory", "bye"]
    assert exception_line(words_of("error: CUDA out of memory")) is None


def test_old_traceback_does_not_explain_a_kill():
    """Killed from outside: what was raised and caught before has nothing to do with it."""
    killed = msgspec.structs.replace(words_of(*MPS_MEMORY.split("\n")), code=None, signal="SIGKILL")
    assert match_exception(killed, "out of memory") is None


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("2.13.0+cpu", (2, 13, 0)),
        ("2.14.0.dev20260301", (2, 14, 0)),
        ("v8.3.203", (8, 3, 203)),
        ("main", None),
        (None, None),
    ],
)
def test_version_is_read(text, version):
    assert versions.parse_version(text) == version


def test_run_tells_its_versions():
    state = seen(on_mac("2.2.1", "14.4.1"))
    assert versions.versions_of(state) == Versions(torch=(2, 2, 1), macos=(14, 4, 1))
    assert versions.on_mps(state) is None
    assert versions.on_mps(seen(on_mac(), device("mps:0"))) is True
    assert versions.on_mps(seen(LINUX)) is False
    assert versions.on_mps(seen(SOMEWHERE)) is None
    assert versions.on_mps(seen(SOMEWHERE, device("cuda:0"))) is False


@pytest.mark.parametrize(
    ("torch", "macos", "ultralytics", "faults"),
    [
        ((2, 2, 1), (14, 4, 1), None, ["scalar-writes-lost", "matmul-reads-too-far", "in-place-writes-lost"]),
        ((2, 4, 0), (14, 4), None, ["matmul-reads-too-far"]),
        ((2, 14, 0), (26, 3), (8, 3, 203), ["copies-not-awaited"]),
        ((2, 14, 0), (26, 3), (8, 3, 204), []),
        ((2, 13, 0), None, None, []),
        (None, (14, 4), None, []),
    ],
)
def test_known_faults_need_every_version(torch, macos, ultralytics, faults):
    """A range ends where the fault was mended, and what is not known is no match."""
    packages = {"ultralytics": ultralytics} if ultralytics else {}
    found = versions.faults_of(Versions(torch, macos, packages))
    assert [fault.id for fault in found] == faults


def test_known_faults_name_remedy_and_sources():
    assert all(fault.remedy and "#" in fault.sources for fault in versions.all_known_faults())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "Ultralytics 8.3.203 🚀 Python-3.12.11 torch-2.8.0 MPS (Apple M4 Pro)",
            Banner("2.8.0", "MPS (Apple M4 Pro)"),
        ),
        (
            "Ultralytics YOLOv8.2.17 🚀 Python-3.11.9 torch-2.3.0 CPU (Apple M3 Pro)",
            Banner("2.3.0", "CPU (Apple M3 Pro)"),
        ),
        (
            "Ultralytics 8.3.112 🚀 Python-3.8.20 torch-2.4.1+cu121 CUDA:0 (NVIDIA A100-SXM4-80GB, 81051MiB)",
            Banner("2.4.1+cu121", "CUDA:0 (NVIDIA A100-SXM4-80GB, 81051MiB)"),
        ),
        ("New https://pypi.org/project/ultralytics/8.4.190 available", None),
    ],
)
def test_banner_tells_versions(line, told):
    """For logs that come without a record."""
    assert find_banner(line) == told
