"""The events of a run, and when each is written.

This pseudocode shows where in a run each event is written. The block under `for each attempt` covers one execution of
the training process. Events marked `probe` are written by the probe inside that process, all others by the supervisor.

    run-started                          once per run: the command, the machine, the schema version
    for each attempt:
        attempt-started                  the exact command, and the checkpoint it resumes from
        interpreter            probe     a Python interpreter started with the probe on its path (once per process)
        import torch ...
            torch-imported     probe
        first backward, optimizer step or loader fetch:
            probe-attached     probe     this process trains: rank, versions, how to request its stacks
            settings           probe     the settings that the framework actually trains with
            coverage           probe     what the probe can observe, and why not the rest; written again when it changes
            loader             probe     number of batches in one pass over the training data
            snapshot-corrupt   probe     a snapshot was skipped, and why
            restored           probe     the state of a snapshot was restored, and whether the resume is exact
            replayed           probe     steps after the snapshot were repeated: same losses, or the first different one
        while training:
            for each step:
                fetch a batch            (wait time, size and hash become part of the step event)
                backward                 (the loss becomes part of the step event)
                    graph      probe     parameters used by the loss compared with those owned by an optimizer
                    stale-gradients probe gradients were left over from the previous step
                optimizer.step
                    weight-updates probe tensors that changed, and those that did not despite a gradient
                    gradients  probe     norms and non-finite values, for sampled steps
                    frozen     probe     whether frozen parameters stayed unchanged
                    skipped    probe     a gradient scaler skipped this step
                step           probe     each of the first thousand steps, and any unusual step after them
                steps          probe     a window of steps, after the first thousand
                schedule       probe     a learning-rate scheduler was found, with its planned total
                memory         probe     device memory
                checksum       probe     a checksum of this rank's weights, to compare with the other ranks
            epoch              probe     an epoch ended
            evaluation         probe     batches were fetched with gradients disabled
            metrics            probe     metrics reported by a framework: loss parts, mAP, fitness
            saved              probe     torch.save was called, and whether the saved weights equal the live ones
            snapshot           probe     the complete training state is on disk, and how long the training waited
            snapshot-failed    probe     a snapshot could not be written, and why; the previous one is kept
            probe-note         probe     the probe changed its sampling, or could not do something
        meanwhile, in the supervisor:
            sample                       memory of the process tree and the system, swap, disk
            slept                        the machine slept: the wall clock jumped ahead of the monotonic clock
            suspended / continued        Ctrl-Z and fg
            signalled                    the supervisor received a signal
            no-progress                  no step, fetch or output for longer than the limit; stack dumps follow
            stacks                       the stack of every thread
            output-matched               a line of output matched the pattern of a rule
            supervisor-note              a remark about Holdfast's own operation
            finding-made                 a rule reported a finding
        process-exiting        probe     the process is about to exit normally
        attempt-ended                    exit code or signal, the exact last step, evidence from the OS, the last output
        reloaded                         a checkpoint was loaded again: is it readable, and are its values finite?
        checkpoints-backed-up            the checkpoints of the attempt were copied to a safe place
        decision-made                    continue, stop, restart or retry, and why
    run-ended                            the verdict and its proofs

If a plan has several stages, each stage has its own run folder with all of the events above. The journal of the whole
run lists the stages.

    run-started
    for each stage:
        stage-left-out                   skipped, because it was measured not to fit into memory; or
        stage-started                    its settings, its initial weights, its folder
        stage-ended                      its verdict, the metric it reached, the result of its gate, its output files
    run-ended                            the verdict of the whole run

Events are frozen. Everything that is shown or decided is derived from them.
"""

from __future__ import annotations

from typing import Literal, Union

import msgspec

from holdfast.probe.holdfast_probe import protocol
from holdfast.schema import json_text
from holdfast.schema.numbers import Count, Moment, Pid, Seconds, Whole
from holdfast.schema.verdicts import Change, Decision, Finding, Proof

SCHEMA = protocol.SCHEMA
"""Version of the journal format. It changes only if an old reader would misread a new journal, not for new fields."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    at: Moment
    """Wall-clock time in seconds since 1970."""


# --- written by the probe, inside the training process ----------------------------------------------------------------


class ProbeEvent(Event, frozen=True, kw_only=True):
    pass


class Interpreter(ProbeEvent, frozen=True, kw_only=True, tag="interpreter"):
    pid: Pid
    ppid: Pid
    python: str
    executable: str


class TorchImported(ProbeEvent, frozen=True, kw_only=True, tag="torch-imported"):
    pid: Pid
    torch: str


class ProbeAttached(ProbeEvent, frozen=True, kw_only=True, tag="probe-attached"):
    schema: Count
    pid: Pid
    rank: Count
    world_size: Count = 1
    primary: bool = True
    """False for an additional process that trains under the same rank: its steps do not count as steps of the run."""
    python: str
    executable: str
    torch: str
    platform: str = ""
    threads: Whole | None = None
    """torch.get_num_threads()."""
    stack_signal: Whole | None = None
    """Send this signal to the process to make it write its stacks; None if no signal was free."""
    stack_file: str | None = None
    """The file that the stacks are written to."""
    first_step: Count = 0
    """Step numbers start after this one: 0 for a fresh start."""


class Coverage(ProbeEvent, frozen=True, kw_only=True, tag="coverage"):
    seen: dict[str, str] = {}
    """Kind of evidence -> a remark, usually empty. A framework that the probe follows is a kind too."""
    missing: dict[str, str] = {}
    """Kind of evidence -> why it is not seen."""
    step_source: str
    """What counts as a step: "optimizer", "backward", "optimizer in backward" or "none"."""
    optimizers: list[str] = []


class WindowStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """Statistics of one value over a window of steps. Non-finite values are only counted in `nonfinite`."""

    n: Count = 0
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    first: float = 0.0
    last: float = 0.0
    zeros: Count = 0
    nonfinite: Count = 0


class Step(ProbeEvent, frozen=True, kw_only=True, tag="step"):
    step: Count
    seconds: Seconds
    """From the end of the previous step to the end of this one, without evaluation and saving in between."""
    data_wait: Seconds = 0.0
    """Seconds spent waiting for the data loader."""
    loss: float | str | None = None
    """Mean of the losses in this step. JSON has no NaN, so "nan", "inf" and "-inf" are written as strings."""
    parts: dict[str, float | str] | None = None
    """Loss components, if a framework knows them."""
    backwards: Count = 1
    """Number of outermost backward calls since the previous step: the observed gradient accumulation."""
    grad_norm: float | str | None = None
    lr: list[float] = []
    samples: Count | None = None
    batch: str | None = None
    """Hash of the first batch fetched for this step."""
    other_steps: dict[str, Count] | None = None
    """Steps of the other optimizers since the last step of the primary one: name -> count."""
    other_losses: dict[str, float | str] | None = None
    instances: Count | None = None
    """Number of labelled objects in the batches of this step, if a framework knows it."""


class Steps(ProbeEvent, frozen=True, kw_only=True, tag="steps"):
    """A window of steps; the fields are those of `Step`, summed or as statistics."""

    first: Count
    last: Count
    seconds: Seconds
    slowest: Seconds = 0.0
    data_wait: Seconds = 0.0
    loss: WindowStats | None = None
    parts: dict[str, WindowStats] | None = None
    backwards: Count = 0
    grad_norm: WindowStats | None = None
    lr: list[float] = []
    samples: Count | None = None
    batches: Count = 0
    """Number of batch hashes taken in this window."""
    different: Count = 0
    """Number of distinct hashes among them."""
    other_steps: dict[str, Count] | None = None
    instances: Count | None = None


class Skipped(ProbeEvent, frozen=True, kw_only=True, tag="skipped"):
    step: Count
    """The last step before the skipped one."""
    optimizer: str
    reason: str = "gradient scaler found a non-finite gradient"


class Epoch(ProbeEvent, frozen=True, kw_only=True, tag="epoch"):
    epoch: Count
    step: Count
    seconds: Seconds
    batches: Count
    planned: Count | None = None
    """Total number of planned epochs, if a framework knows it."""
    source: str
    """"loader" or the name of a framework."""


class Loader(ProbeEvent, frozen=True, kw_only=True, tag="loader"):
    step: Count
    batches: Count
    """Number of batches in one pass over the training data."""
    samples: Count = 0
    """Number of samples in one batch; 0 if unknown."""


class Evaluation(ProbeEvent, frozen=True, kw_only=True, tag="evaluation"):
    step: Count
    seconds: Seconds
    fetches: Count


class Settings(ProbeEvent, frozen=True, kw_only=True, tag="settings"):
    """The settings that the framework actually trains with."""

    source: str
    values: dict[str, bool | Whole | float | str | None]


class Metrics(ProbeEvent, frozen=True, kw_only=True, tag="metrics"):
    step: Count
    epoch: Count | None = None
    values: dict[str, float | str]
    source: str


class Graph(ProbeEvent, frozen=True, kw_only=True, tag="graph"):
    step: Count
    used: Count
    """Number of parameters that the losses use."""
    held: Count
    """Number of parameters that an optimizer owns."""
    used_not_held: list[str] = []
    """Names of the first few parameters that are used but owned by no optimizer; `outside` is their total number."""
    held_not_used: list[str] = []
    """Names of the first few parameters that are owned by an optimizer but not used; `unused` is their total number."""
    outside: Count | None = None
    """Number of parameters that the losses use and no optimizer owns."""
    outside_in_eval: Count = 0
    """Those of `outside` whose module is in evaluation mode: a fixed network that the loss passes through."""
    unused: Count | None = None
    """Number of parameters that optimizers own and step but no loss uses."""


class StaleGradients(ProbeEvent, frozen=True, kw_only=True, tag="stale-gradients"):
    step: Count
    tensors: Count
    """Number of tensors with left-over gradients, out of `of`."""
    of: Count
    names: list[str] = []
    clean: Count = 0
    """How often the gradients of the same optimizer had been clean before, when they had to be."""


class StuckTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tensor that did not change although its gradient requires it."""

    name: str
    rows: Count
    with_gradient: Count
    """Number of rows with a non-zero gradient."""
    stuck: Count
    """Number of rows with a non-zero gradient that did not change."""
    update_ulps: float | None = None
    """The largest expected update among the stuck rows, in ULPs of the weight; below 0.5 it is rounded away."""
    state_moved: bool | None = None
    """Whether the optimizer state of this tensor changed."""
    times: Count = 1
    """Number of consecutive steps in which some of these rows had to change and none did."""
    by_others: bool = False
    """The optimizer is unknown, so the expected update is derived from how far it changed other weights."""


class WeightUpdates(ProbeEvent, frozen=True, kw_only=True, tag="weight-updates"):
    step: Count
    checked: Count
    """Number of tensors checked, out of `of`."""
    of: Count
    moved: Count
    """Number of checked tensors that changed."""
    state_moved: Count = 0
    """Number of checked tensors whose optimizer state changed."""
    no_gradient: list[str] = []
    zero_gradient: list[str] = []
    zero_input: list[str] = []
    """Weights with an exactly zero gradient whose bias has a non-zero one: the input of the layer is all zeros."""
    stuck: list[StuckTensor] = []
    moving_again: list[str] = []
    """Tensors reported as stuck earlier that have changed since."""


class Gradients(ProbeEvent, frozen=True, kw_only=True, tag="gradients"):
    step: Count
    norm: float | str
    tensors: Count
    missing: Count = 0
    """Number of tensors without a gradient."""
    zero: Count = 0
    """Number of tensors with an all-zero gradient."""
    nonfinite: Count = 0
    """Number of tensors with a non-finite gradient."""
    nonfinite_names: list[str] = []
    other_optimizer: bool = False
    """The gradients belong to another optimizer, not to the primary one."""


class Frozen(ProbeEvent, frozen=True, kw_only=True, tag="frozen"):
    step: Count
    since: Count
    """The step whose values are the reference for the comparison."""
    tensors: Count
    """Number of parameters with requires_grad=False in the models being trained."""
    statistics: Count = 0
    """Number of normalization layers with only such parameters."""
    moved: list[str] = []
    """Frozen parameters that changed anyway. Averages of other parameters do so on purpose."""
    moved_by_optimizer: list[str] = []
    """Frozen parameters that were changed by an optimizer step."""
    statistics_moved: list[str] = []
    """Layers whose running statistics changed while their parameters did not."""


class Schedule(ProbeEvent, frozen=True, kw_only=True, tag="schedule"):
    step: Count
    scheduler: str
    planned: Count | None = None
    """Total number of scheduler steps it was built for, if it has one."""
    done: Count | None = None
    """Number of scheduler steps done."""


class Memory(ProbeEvent, frozen=True, kw_only=True, tag="memory"):
    step: Count
    device: str
    allocated: Whole | None = None
    """Bytes in tensors."""
    driver: Whole | None = None
    """Bytes allocated by the driver (MPS)."""
    reserved: Whole | None = None
    """Bytes reserved by the caching allocator (CUDA and similar devices)."""
    peak: Whole | None = None
    """Maximum of `allocated` so far (CUDA and similar devices)."""
    limit: Whole | None = None
    """Total memory of the device in bytes, if it reports it."""
    rss: Whole | None = None
    """Resident memory of the process in bytes (Linux only)."""


class Checksum(ProbeEvent, frozen=True, kw_only=True, tag="checksum"):
    step: Count
    rank: Count
    value: str
    tensors: Count


class Saved(ProbeEvent, frozen=True, kw_only=True, tag="saved"):
    step: Count
    path: str | None
    """None if the target was not a file."""
    bytes: Whole | None = None
    seconds: Seconds = 0.0
    tensors: Count = 0
    compared: Count = 0
    matches: str = "not compared"
    """How the saved weights compare with the live ones: "equal", "cast" (another dtype), "average" (a known average of
    them), "earlier" (weights that were live before), "near" (as close as older weights and averages are), "differs"
    (none of these explains the difference), or "not compared"."""
    differing: list[str] = []
    """Names of tensors that differ."""
    nonfinite: Count = 0
    """Number of compared tensors with non-finite values."""


class Snapshot(ProbeEvent, frozen=True, kw_only=True, tag="snapshot"):
    step: Count
    position: Count
    """Number of batches used so far. Snapshots are numbered by it."""
    path: str
    bytes: Whole
    stall: Seconds
    """Seconds that the training waited."""
    seconds: Seconds
    """Seconds of writing in the background."""
    asked: bool = False
    """The supervisor requested this snapshot."""


class SnapshotFailed(ProbeEvent, frozen=True, kw_only=True, tag="snapshot-failed"):
    step: Count
    why: str


class SnapshotCorrupt(ProbeEvent, frozen=True, kw_only=True, tag="snapshot-corrupt"):
    path: str
    why: str


class Restored(ProbeEvent, frozen=True, kw_only=True, tag="restored"):
    step: Count
    path: str
    exact: bool = True
    why: str = ""
    """What could not be restored exactly."""


class Replayed(ProbeEvent, frozen=True, kw_only=True, tag="replayed"):
    """The steps after the snapshot were repeated, and their losses compared with those of the first time."""

    step: Count
    compared: Count
    """Number of batches compared."""
    differs_at: Count | None = None
    """The first step whose loss was not bitwise identical."""


NoteCode = Literal["", "optimizer-handover", "events-lost", "stopped-early"]


class ProbeNote(ProbeEvent, frozen=True, kw_only=True, tag="probe-note"):
    what: str
    detail: str = ""
    code: NoteCode = ""
    """What rules read. optimizer-handover: another optimizer became the primary one. events-lost: the probe can write to
    the disk again. stopped-early: the trainer ended before its last epoch on purpose."""


class ProcessExiting(ProbeEvent, frozen=True, kw_only=True, tag="process-exiting"):
    step: Count
    reason: str
    """Either "exit" or "supervisor gone"."""


# --- written by the supervisor ----------------------------------------------------------------------------------------


class RunStarted(Event, frozen=True, kw_only=True, tag="run-started"):
    schema: Count
    run: str
    command: list[str]
    """Each secret is replaced by `***`."""
    cwd: str
    holdfast: str
    """Version of Holdfast."""
    platform: str
    python: str
    supervisor: Pid
    memory_total: Whole | None = None
    memory_budget: Whole | None = None
    """Memory limit for the training in bytes, if the plan sets one."""
    observe_only: bool = False
    """The user wants nothing to be changed: Holdfast applies no fixes in the training process."""
    environment: dict[str, str] = {}
    """Environment variables from an allow-list."""
    tuning: dict[str, dict[str, float | str]] = {}
    """The user's rule settings: rule -> limit -> value. "severity" is the highest severity it may report, or "off"."""


class RunContinued(Event, frozen=True, kw_only=True, tag="run-continued"):
    """Another supervisor took over a run whose previous supervisor is gone."""

    supervisor: Pid
    holdfast: str
    memory_budget: Whole | None = None
    observe_only: bool = False
    tuning: dict[str, dict[str, float | str]] | None = None
    """As in RunStarted, with the options of the resume; None if nothing has changed."""


class Resume(msgspec.Struct, frozen=True, omit_defaults=True):
    how: str
    """One of "snapshot", "framework", "command", "environment" and "start over"."""
    checkpoint: str | None = None
    step: Count = 0
    why: str = ""
    fallback: str | None = None
    """A checkpoint to resume from if the snapshot turns out to be unusable."""


class AttemptStarted(Event, frozen=True, kw_only=True, tag="attempt-started"):
    attempt: Count
    pid: Pid
    start: str = ""
    """Start time of the process in the system's own unit. With `pid_space`, it detects a reused PID."""
    pid_space: str = ""
    """The boot and the PID namespace in which the PID is valid."""
    command: list[str]
    resume: Resume | None = None
    changes: list[Change] = []
    """What differs from the previous attempt."""


class Sample(Event, frozen=True, kw_only=True, tag="sample"):
    rss: Whole
    """Resident memory of the whole process tree."""
    processes: Count
    available: Whole
    """Bytes of system memory that are available."""
    swap: Whole
    """Bytes of swap in use."""
    swap_in: Whole | None = None
    """Bytes swapped in by the system since it started."""
    disk_free: Whole
    load: float | None = None
    """System load average."""
    cpu: Seconds | None = None
    """CPU time of the process tree in seconds."""


class Slept(Event, frozen=True, kw_only=True, tag="slept"):
    seconds: Seconds


class Suspended(Event, frozen=True, kw_only=True, tag="suspended"):
    pass


class Continued(Event, frozen=True, kw_only=True, tag="continued"):
    seconds: Seconds
    """How long the run was suspended."""


class Signalled(Event, frozen=True, kw_only=True, tag="signalled"):
    signal: str
    action: str
    """What the supervisor did with the signal."""
    ends_run: bool = False
    """It came between two attempts: no further attempt follows."""


class NoProgress(Event, frozen=True, kw_only=True, tag="no-progress"):
    seconds: Seconds
    """How long there has been no step, fetch or output."""
    bound: Seconds
    """The limit that was exceeded."""


class Stacks(Event, frozen=True, kw_only=True, tag="stacks"):
    pid: Pid
    text: str
    same: bool
    """True if every thread is at the same place as in the previous dump."""


class OutputMatched(Event, frozen=True, kw_only=True, tag="output-matched"):
    """A line of the training's output that matched the pattern of a rule."""

    rule: str
    stream: str
    text: str
    count: Count = 1
    """Number of matching lines so far."""


class SupervisorNote(Event, frozen=True, kw_only=True, tag="supervisor-note"):
    """A remark about Holdfast itself: how the machine is kept awake, a failed write, an internal error."""

    what: str
    detail: str = ""
    code: Literal["", "kept-awake", "not-kept-awake"] = ""


class FindingMade(Event, frozen=True, kw_only=True, tag="finding-made"):
    finding: Finding


class Evidence(msgspec.Struct, frozen=True):
    source: str
    text: str


StopCause = Literal["user", "terminate", "budget", "planned restart", "supervisor gone", "rule"]
INTERRUPTIONS: tuple[StopCause, ...] = ("user", "terminate", "budget")
"""What stops a run that could have continued."""


class AttemptEnded(Event, frozen=True, kw_only=True, tag="attempt-ended"):
    attempt: Count
    code: Whole | None
    signal: str | None = None
    first_step: Count | None = None
    last_step: Count = 0
    seconds: Seconds = 0.0
    stopped_by: StopCause | None = None
    """None if it exited on its own."""
    rule: str = ""
    """The rule that stopped it, if `stopped_by` is "rule"."""
    planned: str = ""
    """Why it was stopped on purpose after a snapshot, to continue from there in a new process; empty otherwise."""
    evidence: list[Evidence] = []
    """What the operating system reports about the exit."""
    last_lines: list[str] = []
    """The last lines of its output."""


class BackedUpFile(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    """Where the training saved it."""
    kept: str
    """Path of the copy."""
    bytes: Whole
    step: Count = 0
    """The step at which it was saved."""
    torn: bool = False
    """The file is truncated or corrupt."""


class CheckpointsBackedUp(Event, frozen=True, kw_only=True, tag="checkpoints-backed-up"):
    attempt: Count
    files: list[BackedUpFile] = []
    left_out: list[str] = []
    """Paths that could not be copied, each with the reason."""


class Reloaded(Event, frozen=True, kw_only=True, tag="reloaded"):
    """A checkpoint was loaded again after the training, without running any code that it contains."""

    path: str
    step: Count = 0
    loads: bool | None
    """None if it was not loaded, because that would run code that it contains."""
    tensors: Count = 0
    nonfinite: list[str] = []
    """Names of tensors with non-finite values."""
    why: str = ""
    """Why it does not load, or why loading was not tried."""
    of: Count = 0
    """Total number of checkpoints. Only the newest are loaded again."""


class DecisionMade(Event, frozen=True, kw_only=True, tag="decision-made"):
    decision: Decision


class StageLeftOut(Event, frozen=True, kw_only=True, tag="stage-left-out"):
    stage: Count
    name: str
    why: str


class StageStarted(Event, frozen=True, kw_only=True, tag="stage-started"):
    stage: Count
    """Number of the stage, from 1."""
    of: Count
    """Total number of stages."""
    name: str
    folder: str
    """Run folder of the stage, below that of the whole run."""
    settings: dict[str, bool | Count | float | str | None] = {}
    weights: str | None = None
    """File with the initial weights."""
    expects: str = ""
    """Measurements taken before the stage, if any."""
    again: bool = False
    """The stage was started before and is resumed."""
    changes: list[Change] = []
    """Changes that previous stages needed, and that this stage applies from its start."""


class StageEnded(Event, frozen=True, kw_only=True, tag="stage-ended"):
    stage: Count
    name: str
    verdict: str
    reason: str
    exit_status: Whole = 0
    metric: str | None = None
    reached: float | None = None
    """Best value of `metric` during the stage."""
    score: float | None = None
    """Best value of the metric by which stages are compared, regardless of the metric of their gates."""
    gate: Literal["open", "closed", ""] = "open"
    """Empty if the stage did not finish."""
    gate_message: str = ""
    best: str | None = None
    """File with the best weights."""
    last: str | None = None
    """File with the last weights."""
    results: str | None = None
    """Folder with the plots and tables of the framework."""


class RunEnded(Event, frozen=True, kw_only=True, tag="run-ended"):
    verdict: str
    reason: str
    proofs: list[Proof] = []
    exit_status: Whole = 0


AnyEvent = Event
KINDS = (*ProbeEvent.__subclasses__(), *(kind for kind in Event.__subclasses__() if kind is not ProbeEvent))
"""The types of all events."""
_decoder = msgspec.json.Decoder(Union[KINDS])  # noqa: UP007 - msgspec reads the union at run time


def decode(line: bytes | str) -> AnyEvent:
    """Decode one line of a journal. Raise msgspec.MsgspecError if it is not an event."""
    event: AnyEvent = _decoder.decode(line)
    return event


def encode(event: Event) -> bytes:
    return json_text.to_bytes(event)


def as_number(value: float | str | None) -> float | None:
    """Return the number, with "nan", "inf" and "-inf" converted to float; None for any other string."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    return None if value is None else float(value)


def as_finite(value: float | str | None) -> float | None:
    """Return the number, or None if there is none or it is not finite."""
    return value if isinstance(value, (int, float)) else None
