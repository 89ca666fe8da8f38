"""The facts of a run, and when each is written.

A run, as pseudocode, with each event where it fires. Indented under `attempt` is what happens inside one life of the
training process; lines marked `child` are written by the probe inside it, all others by the supervisor.

    run-started                          once; the command, the machine, the schema version
    for each attempt:
        attempt-started                  the exact command, the checkpoint it goes on from
        interpreter            child     a Python started with the probe on its path (one for each process)
        import torch ...
            torch-imported     child
        first backward, step or loader fetch:
            probe-attached     child     this process trains: rank, versions, how to ask it for stacks
            settings           child     what a framework really trains with
            coverage           child     what can be seen and what cannot, and why; again whenever that changes
            loader             child     how many batches a pass over the training's data has
            snapshot-corrupt   child     a snapshot was passed over, and why
            restored           child     the training has the state of a snapshot, and whether it goes on exactly
            replayed           child     what had been done since was done again: the same losses, or from which step not
        while training:
            for each step:
                fetch a batch            (its wait, size and hash go into the step)
                backward                 (its loss goes into the step)
                    graph      child     which parameters the loss uses against which an optimizer holds
                    stale-gradients child gradients were left over from the step before
                optimizer.step
                    weight-updates child  which tensors moved, and which did not although their gradient says so
                    gradients  child     norms and finiteness, where looked at
                    frozen     child     whether what is frozen stayed as it was
                    skipped    child     a gradient scaler skipped this step
                step           child     the first thousand, and any that is out of the ordinary
                steps          child     a window of steps after that
                schedule       child     a learning-rate scheduler was seen, with its planned total
                memory         child     device memory
                checksum       child     this rank's weights as one number, to be compared with the other ranks'
            epoch              child
            evaluation         child     fetching with gradients disabled
            metrics            child     what an adapter knows: loss parts, mAP, fitness
            saved              child     torch.save, and whether what was saved is what is live
            snapshot           child     the whole state is on disk, and how long the training waited for that
            snapshot-failed    child     it is not, and why; the one before still is
            probe-note         child     the probe changed its sampling, or could not do something
        meanwhile, outside:
            sample                       memory of the process tree and the system, swap, disk
            slept                        the wall clock jumped against the monotonic one
            suspended / continued        Ctrl-Z and fg
            signalled                    a signal reached the supervisor
            no-progress                  no step, fetch or output past the bound: stacks follow
            stacks                       what every thread was doing
            output-matched               a line of output that a rule knows
            supervisor-note              something about Holdfast's own work that a reader should know
            finding-made                 a rule concluded something
        process-exiting        child     the process is about to end in an orderly way
        attempt-ended                    exit code or signal, the exact last step, the OS's evidence, the last words
        reloaded                         a checkpoint was read back: it loads, and its values are finite
        checkpoints-backed-up            what the attempt saved was copied out of harm's way
        decision-made                    continue, stop, restart or retry, and why
    run-ended                            the verdict and its proofs

The run of a plan with several stages is a run of runs: each stage has a run folder of its own with all of the above in it, and the
journal of the whole says which stages there were.

    run-started
    for each stage:
        stage-left-out                   it does not fit into memory, as measured; or
        stage-started                    its settings, the weights that it begins with, its folder
        stage-ended                      its verdict, what it reached, what its gate says, the files that it leaves
    run-ended                            the verdict of the whole

Events are frozen. Everything that is shown or decided is derived from them.
"""

from __future__ import annotations

from typing import Literal, Union

import msgspec

from holdfast.schema import json_text
from holdfast.schema.numbers import Count, Moment, Pid, Seconds, Whole
from holdfast.schema.verdicts import Change, Decision, Finding, Proof

SCHEMA = 1
"""Version of the journal. It changes only when an old reader would misread a new journal; new fields do not change it."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    at: Moment
    """Wall clock, seconds since 1970."""


# --- written by the probe, inside the child ---------------------------------------------------------------------------


class Interpreter(Event, frozen=True, kw_only=True, tag="interpreter"):
    pid: Pid
    ppid: Pid
    python: str
    executable: str


class TorchImported(Event, frozen=True, kw_only=True, tag="torch-imported"):
    pid: Pid
    torch: str


class ProbeAttached(Event, frozen=True, kw_only=True, tag="probe-attached"):
    schema: Count
    pid: Pid
    rank: Count
    world_size: Count = 1
    primary: bool = True
    """False for a further process that also trains under the same rank: its steps are not the run's clock."""
    python: str
    executable: str
    torch: str
    platform: str = ""
    threads: Whole | None = None
    stack_signal: Whole | None = None
    """Send this signal to the process to have its stacks written; None where no signal was free."""
    stack_file: str | None = None
    first_step: Count = 0
    """Numbering goes on from here: 0 for a fresh start."""


class Coverage(Event, frozen=True, kw_only=True, tag="coverage"):
    kinds: dict[str, str]
    """Kind of evidence -> "seen", or "not seen: " and why."""
    step_source: str
    """"optimizer", "backward", "optimizer in backward" or "none"."""
    optimizers: list[str] = []


class WindowStats(msgspec.Struct, frozen=True, omit_defaults=True):
    """A series of numbers inside a window. Non-finite values are counted in `nonfinite` and left out of the rest."""

    n: Count = 0
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    first: float = 0.0
    last: float = 0.0
    zeros: Count = 0
    nonfinite: Count = 0


class Step(Event, frozen=True, kw_only=True, tag="step"):
    step: Count
    seconds: Seconds
    """From the end of the step before to the end of this one, evaluation and saving in between left out."""
    data_wait: Seconds = 0.0
    loss: float | str | None = None
    """Mean of the losses that went into this step. JSON has no NaN: "nan", "inf" and "-inf" stand for those."""
    parts: dict[str, float | str] | None = None
    """Loss components, where an adapter knows them."""
    backwards: Count = 1
    """Outermost backwards since the step before: the accumulation as observed."""
    grad_norm: float | str | None = None
    lr: list[float] = []
    samples: Count | None = None
    batch: str | None = None
    """Hash of the first batch fetched for this step."""
    other_steps: dict[str, Count] | None = None
    """Steps of further optimizers since the last one of the first: name -> count."""
    other_losses: dict[str, float | str] | None = None
    instances: Count | None = None
    """Labelled objects in the step's batches, where an adapter knows."""


class Steps(Event, frozen=True, kw_only=True, tag="steps"):
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
    """How many batch hashes were taken in this window, and how many different ones they were."""
    different: Count = 0
    other_steps: dict[str, Count] | None = None
    instances: Count | None = None


class Skipped(Event, frozen=True, kw_only=True, tag="skipped"):
    step: Count
    """The last step before the one that was skipped."""
    optimizer: str
    reason: str = "gradient scaler found a non-finite gradient"


class Epoch(Event, frozen=True, kw_only=True, tag="epoch"):
    epoch: Count
    step: Count
    seconds: Seconds
    batches: Count
    planned: Count | None = None
    """How many epochs are planned, where an adapter knows."""
    source: str
    """"loader" or the name of an adapter."""


class Loader(Event, frozen=True, kw_only=True, tag="loader"):
    step: Count
    batches: Count
    """In one pass over the data that the training reads."""
    samples: Count = 0
    """In one of them; 0 where that is not to be told."""


class Evaluation(Event, frozen=True, kw_only=True, tag="evaluation"):
    step: Count
    seconds: Seconds
    fetches: Count


class Settings(Event, frozen=True, kw_only=True, tag="settings"):
    """What a framework really trains with."""

    source: str
    values: dict[str, bool | Whole | float | str | None]


class Metrics(Event, frozen=True, kw_only=True, tag="metrics"):
    step: Count
    epoch: Count | None = None
    values: dict[str, float | str]
    source: str


class Graph(Event, frozen=True, kw_only=True, tag="graph"):
    step: Count
    used: Count
    held: Count
    used_not_held: list[str] = []
    """The first few by name; `outside` counts them all."""
    held_not_used: list[str] = []
    outside: Count | None = None
    """Parameters that the losses use and no optimizer holds."""
    outside_in_eval: Count = 0
    """Those of them whose module is in evaluation mode: a fixed network that the loss looks through."""
    unused: Count | None = None
    """Parameters that optimizers hold and step, and that no loss uses."""


class StaleGradients(Event, frozen=True, kw_only=True, tag="stale-gradients"):
    step: Count
    tensors: Count
    of: Count
    names: list[str] = []
    clean: Count = 0
    """How often until then the same optimizer's gradients were seen to be clean where they had to be."""


class StuckTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    name: str
    rows: Count
    with_gradient: Count
    stuck: Count
    """Rows with a non-zero gradient that did not change."""
    update_ulps: float | None = None
    """The largest expected update among stuck rows, in units of the weight's last place; below 0.5 it cannot show."""
    state_moved: bool | None = None
    times: Count = 1
    """So many times in a row, in steps that followed each other, some of these rows had to move and none did."""
    by_others: bool = False
    """The optimizer is not one that is known: what was to be expected follows from how far it moved other weights."""


class WeightUpdates(Event, frozen=True, kw_only=True, tag="weight-updates"):
    step: Count
    checked: Count
    of: Count
    moved: Count
    state_moved: Count = 0
    no_gradient: list[str] = []
    zero_gradient: list[str] = []
    zero_input: list[str] = []
    """Weights whose gradient is exactly zero while that of the bias beside them is not: their layer is given only zeros."""
    stuck: list[StuckTensor] = []
    moving_again: list[str] = []
    """Told as stuck before, and seen to move since."""


class Gradients(Event, frozen=True, kw_only=True, tag="gradients"):
    step: Count
    norm: float | str
    tensors: Count
    missing: Count = 0
    zero: Count = 0
    nonfinite: Count = 0
    nonfinite_names: list[str] = []
    other_optimizer: bool = False
    """Of a further optimizer, not of the one whose steps are the run's."""


class Frozen(Event, frozen=True, kw_only=True, tag="frozen"):
    step: Count
    since: Count
    """Compared with what they were at that step."""
    tensors: Count
    """Parameters that ask for no gradient, of models that are trained."""
    statistics: Count = 0
    """Normalisation layers with nothing but such parameters."""
    moved: list[str] = []
    """Parameters that changed all the same: averages of others do so on purpose."""
    moved_by_optimizer: list[str] = []
    """Parameters that an optimizer's own step changed although they ask for no gradient."""
    statistics_moved: list[str] = []
    """Layers whose running statistics changed while their parameters did not."""


class Schedule(Event, frozen=True, kw_only=True, tag="schedule"):
    step: Count
    scheduler: str
    planned: Count | None = None
    """Scheduler steps that it was built for, where it has such a total."""
    done: Count | None = None


class Memory(Event, frozen=True, kw_only=True, tag="memory"):
    step: Count
    device: str
    allocated: Whole | None = None
    driver: Whole | None = None
    reserved: Whole | None = None
    peak: Whole | None = None
    limit: Whole | None = None
    """What the device can hold in all, where it says so."""
    rss: Whole | None = None


class Checksum(Event, frozen=True, kw_only=True, tag="checksum"):
    step: Count
    rank: Count
    value: str
    tensors: Count


class Saved(Event, frozen=True, kw_only=True, tag="saved"):
    step: Count
    path: str | None
    """None when it was saved to something that is not a file."""
    bytes: Whole | None = None
    seconds: Seconds = 0.0
    tensors: Count = 0
    compared: Count = 0
    matches: str = "not compared"
    """How what was saved compares with the live weights: "equal", "cast" to another type, a known "average" of them,
    "earlier" weights that were live before, "near" them as older ones and averages are, "differs" where none of these
    explains it, or "not compared"."""
    differing: list[str] = []
    nonfinite: Count = 0
    """Compared tensors with non-finite values."""


class Snapshot(Event, frozen=True, kw_only=True, tag="snapshot"):
    step: Count
    position: Count
    """Batches that were used up to it: snapshots are numbered by them."""
    path: str
    bytes: Whole
    stall: Seconds
    """Seconds that the training waited."""
    seconds: Seconds
    """Seconds that it took to write, beside the training."""
    asked: bool = False


class SnapshotFailed(Event, frozen=True, kw_only=True, tag="snapshot-failed"):
    step: Count
    why: str


class SnapshotCorrupt(Event, frozen=True, kw_only=True, tag="snapshot-corrupt"):
    path: str
    why: str


class Restored(Event, frozen=True, kw_only=True, tag="restored"):
    step: Count
    path: str
    exact: bool = True
    why: str = ""
    """What is not the same as it was."""


class Replayed(Event, frozen=True, kw_only=True, tag="replayed"):
    """What had been done after the snapshot was done again, and its losses were compared with those of the first time."""

    step: Count
    compared: Count
    """How many batches."""
    differs_at: Count | None = None
    """The step of the first that was not the same, bit for bit."""


class ProbeNote(Event, frozen=True, kw_only=True, tag="probe-note"):
    what: str
    detail: str = ""


class ProcessExiting(Event, frozen=True, kw_only=True, tag="process-exiting"):
    step: Count
    reason: str
    """"exit" or "supervisor gone"."""


# --- written by the supervisor ----------------------------------------------------------------------------------------


class RunStarted(Event, frozen=True, kw_only=True, tag="run-started"):
    schema: Count
    run: str
    command: list[str]
    """Without its secrets: `***` stands for each."""
    cwd: str
    holdfast: str
    platform: str
    python: str
    supervisor: Pid
    memory_total: Whole | None = None
    memory_budget: Whole | None = None
    """What the plan lets the training hold, where it says so."""
    observe_only: bool = False
    """The user wants nothing to be changed: what Holdfast would mend in the training's process stays as it is."""
    environment: dict[str, str] = {}
    """From an allow-list."""
    tuning: dict[str, dict[str, float | str]] = {}
    """What the user set for rules: rule -> limit -> value; "severity" caps what it may say, "off" among them."""


class RunContinued(Event, frozen=True, kw_only=True, tag="run-continued"):
    """A further supervisor took over a run whose first one is gone."""

    supervisor: Pid
    holdfast: str


class Resume(msgspec.Struct, frozen=True, omit_defaults=True):
    how: str
    """"snapshot", "ultralytics", "command", "environment" or "start over"."""
    checkpoint: str | None = None
    step: Count = 0
    why: str = ""
    fallback: str | None = None
    """A checkpoint to go on from should the snapshot be of no use after all."""


class AttemptStarted(Event, frozen=True, kw_only=True, tag="attempt-started"):
    attempt: Count
    pid: Pid
    start: str = ""
    """When the process started, in the system's own unit: with `pid_space`, what tells it from another one with the same pid."""
    pid_space: str = ""
    """The boot and the PID namespace in which the pid holds."""
    command: list[str]
    resume: Resume | None = None
    changes: list[Change] = []
    """What it does otherwise than the attempt before it."""


class Sample(Event, frozen=True, kw_only=True, tag="sample"):
    rss: Whole
    """Resident memory of the whole process tree."""
    processes: Count
    available: Whole
    swap: Whole
    swap_in: Whole | None = None
    """Bytes swapped in by the system since it started."""
    disk_free: Whole
    load: float | None = None
    cpu: Seconds | None = None
    """Seconds of processor time that the process tree has used."""


class Slept(Event, frozen=True, kw_only=True, tag="slept"):
    seconds: Seconds


class Suspended(Event, frozen=True, kw_only=True, tag="suspended"):
    pass


class Continued(Event, frozen=True, kw_only=True, tag="continued"):
    seconds: Seconds


NO_FURTHER_ATTEMPT = "no further attempt"


class Signalled(Event, frozen=True, kw_only=True, tag="signalled"):
    signal: str
    action: str


class NoProgress(Event, frozen=True, kw_only=True, tag="no-progress"):
    seconds: Seconds
    bound: Seconds


class Stacks(Event, frozen=True, kw_only=True, tag="stacks"):
    pid: Pid
    text: str
    same: bool
    """True when every thread stands where it stood in the dump before."""


class OutputMatched(Event, frozen=True, kw_only=True, tag="output-matched"):
    """A line of the training's output that a rule asked to be told of."""

    rule: str
    stream: str
    text: str
    count: Count = 1
    """How often such a line has come so far."""


class SupervisorNote(Event, frozen=True, kw_only=True, tag="supervisor-note"):
    """About Holdfast itself: what keeps the machine awake, a write that failed, a fault of its own."""

    what: str
    detail: str = ""


class FindingMade(Event, frozen=True, kw_only=True, tag="finding-made"):
    finding: Finding


class Evidence(msgspec.Struct, frozen=True):
    source: str
    text: str


class AttemptEnded(Event, frozen=True, kw_only=True, tag="attempt-ended"):
    attempt: Count
    code: Whole | None
    signal: str | None = None
    first_step: Count | None = None
    last_step: Count = 0
    seconds: Seconds = 0.0
    stopped_by: str | None = None
    """Who ended it: "user", "terminate", "budget", a rule's id, or None when it ended by itself."""
    planned: str = ""
    """Why it was ended on purpose, after a snapshot, to go on at that point in a fresh process."""
    evidence: list[Evidence] = []
    last_words: list[str] = []


class BackedUpFile(msgspec.Struct, frozen=True, omit_defaults=True):
    path: str
    kept: str
    bytes: Whole
    step: Count = 0
    torn: bool = False


class CheckpointsBackedUp(Event, frozen=True, kw_only=True, tag="checkpoints-backed-up"):
    attempt: Count
    files: list[BackedUpFile] = []
    left_out: list[str] = []
    """Paths that could not be kept, each with its reason."""


class Reloaded(Event, frozen=True, kw_only=True, tag="reloaded"):
    """A checkpoint was read back after the training, without running any code that is in it."""

    path: str
    step: Count = 0
    loads: bool | None
    """None where it was not read back, because that would run code that is in it."""
    tensors: Count = 0
    nonfinite: list[str] = []
    """Tensors with values that are not finite."""
    why: str = ""
    """Why it does not load, or could not be tried."""
    of: Count = 0
    """How many checkpoints there were, of which the newest were read back."""


class DecisionMade(Event, frozen=True, kw_only=True, tag="decision-made"):
    decision: Decision


class StageLeftOut(Event, frozen=True, kw_only=True, tag="stage-left-out"):
    stage: Count
    name: str
    why: str


class StageStarted(Event, frozen=True, kw_only=True, tag="stage-started"):
    stage: Count
    """From 1."""
    of: Count
    name: str
    folder: str
    """Its run folder, below that of the whole run."""
    settings: dict[str, bool | Count | float | str | None] = {}
    weights: str | None = None
    """The file that it begins with."""
    expects: str = ""
    """What was measured before it, where something was."""
    again: bool = False
    """It had begun before, and goes on."""
    changes: list[Change] = []
    """What stages before it had to do otherwise, and it does so from its start."""


class StageEnded(Event, frozen=True, kw_only=True, tag="stage-ended"):
    stage: Count
    name: str
    verdict: str
    reason: str
    exit_status: Whole = 0
    metric: str | None = None
    reached: float | None = None
    """The best of this metric while it trained."""
    score: float | None = None
    """The best of what stages are compared by, whatever their gates ask for."""
    gate: Literal["open", "closed", ""] = "open"
    """Empty where the stage did not come to its end."""
    gate_message: str = ""
    best: str | None = None
    last: str | None = None
    results: str | None = None
    """The folder with the framework's own plots and tables."""


class RunEnded(Event, frozen=True, kw_only=True, tag="run-ended"):
    verdict: str
    reason: str
    proofs: list[Proof] = []
    exit_status: Whole = 0


ChildEvent = Union[  # noqa: UP007 - msgspec reads the union at run time
    Interpreter,
    TorchImported,
    ProbeAttached,
    Coverage,
    Step,
    Steps,
    Skipped,
    Epoch,
    Loader,
    Evaluation,
    Settings,
    Metrics,
    Graph,
    StaleGradients,
    WeightUpdates,
    Gradients,
    Frozen,
    Schedule,
    Memory,
    Checksum,
    Saved,
    Snapshot,
    SnapshotFailed,
    SnapshotCorrupt,
    Restored,
    Replayed,
    ProbeNote,
    ProcessExiting,
]
SupervisorEvent = Union[  # noqa: UP007
    RunStarted,
    RunContinued,
    AttemptStarted,
    Sample,
    Slept,
    Suspended,
    Continued,
    Signalled,
    NoProgress,
    Stacks,
    OutputMatched,
    SupervisorNote,
    FindingMade,
    AttemptEnded,
    CheckpointsBackedUp,
    Reloaded,
    DecisionMade,
    StageLeftOut,
    StageStarted,
    StageEnded,
    RunEnded,
]
AnyEvent = Union[ChildEvent, SupervisorEvent]  # noqa: UP007

_decoder = msgspec.json.Decoder(AnyEvent)


def decode(line: bytes | str) -> AnyEvent:
    """One line of a journal as an event. Raises msgspec.MsgspecError where it is none."""
    event: AnyEvent = _decoder.decode(line)
    return event


def encode(event: Event) -> bytes:
    return json_text.to_bytes(event)


def as_number(value: float | str | None) -> float | None:
    """A number as it was before JSON took its NaN away; None for a word that stands for none."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    return None if value is None else float(value)


def as_finite(value: float | str | None) -> float | None:
    """A number, or None where it is none or not finite."""
    return value if isinstance(value, (int, float)) else None
