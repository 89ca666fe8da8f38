"""Lines that rules know, found in output as it passes by: all of them, cheaply, and without touching the output."""

from __future__ import annotations

import sys

import pytest

from holdfast.diagnosis.engine import Engine
from holdfast.diagnosis.output_patterns import needles, rules_matching
from holdfast.diagnosis.run_state import RunState
from holdfast.process.output_forwarder import Source
from holdfast.process.output_log import OutputLog
from holdfast.process.output_matcher import MAX_LINE, MatchedLine, OutputMatcher, Tally
from holdfast.schema import events
from holdfast.schema.plan import Budget, Plan
from holdfast.storage import folder
from holdfast.storage.journal import JournalWriter, replay
from holdfast.storage.redact import Redactor
from holdfast.supervisor import supervisor
from holdfast.supervisor.event_pipeline import EventPipeline
from holdfast.testing.histories import started

NMS = b"WARNING \xe2\x9a\xa0\xef\xb8\x8f NMS time limit 2.800s exceeded"


def watched(*pieces, stream="stderr"):
    """What is heard of output that arrives in these pieces."""
    watch = OutputMatcher(needles(), rules_matching)
    one = watch.on(stream)
    for piece in pieces:
        one.feed(piece)
    one.finish()
    assert watch.fault is None
    return watch.take()


def test_line_is_heard_once_it_is_complete():
    heard = watched(b"epoch 1\n" + NMS + b"\nepoch 2\n")
    assert heard == [MatchedLine("nms-cut-short", "stderr", NMS.decode(), 1)]


@pytest.mark.parametrize("cut", range(0, len(NMS) + 6, 3))
def test_line_that_arrives_in_two_pieces_is_heard_once(cut):
    """Wherever the kernel happens to cut the stream."""
    whole = b"a\n" + NMS + b"\nz\n"
    assert [(h.text, h.count) for h in watched(whole[:cut], whole[cut:])] == [(NMS.decode(), 1)]


def test_byte_by_byte():
    assert len(watched(*(bytes([byte]) for byte in b"a\n" + NMS + b"\n"))) == 1


def test_last_line_needs_no_end():
    """A process that dies in the middle of a line has still said it."""
    assert [h.topic for h in watched(b"x\n" + NMS)] == ["nms-cut-short"]


def test_colours_are_taken_off():
    assert watched(b"\x1b[33m\x1b[1mWARNING\x1b[0m NMS time limit 2.800s exceeded\r\n")[0].text == (
        "WARNING NMS time limit 2.800s exceeded"
    )


def test_progress_bar_is_many_lines():
    """States of a bar end with carriage returns; what is printed behind one is heard without the bar before it."""
    bar = b"".join(b"\r %d%%|###   | 12/30 [36:03<53:52, 179.58s/it]" % n for n in range(100))
    heard = watched(bar + b"Error: command buffer exited with error status.\r 40%|##\n\tThe Metal ...\n")
    assert [h.topic for h in heard] == ["command-buffer-failed"]
    assert heard[0].text.startswith(" 99%|###")
    assert len(heard[0].text) < 120


def test_told_of_the_first_second_fourth_time():
    """Two streams count together; a million lines make twenty events."""
    heard = watched((NMS + b"\n") * 1000)
    assert [h.count for h in heard] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    tally = Tally()
    told = [t.count for n in range(6) for t in tally.add(["a"], "stdout" if n % 2 else "stderr", "x")]
    assert told == [1, 2, 4]


def test_long_line_is_cut_around_what_was_found():
    heard = watched(b"x" * 100_000 + NMS + b"y" * 100_000 + b"\n")
    assert "NMS time limit" in heard[0].text
    assert len(heard[0].text) <= MAX_LINE


def test_endless_line_takes_no_memory():
    """Output without a single line's end is looked at in pieces, not kept."""
    watch = OutputMatcher(needles(), rules_matching)
    one = watch.on("stdout")
    for _ in range(200):
        one.feed(b"\x00\xff" * 8192)
        assert len(one._partial) <= MAX_LINE
    assert watch.take() == []


def test_ordinary_output_is_never_taken_apart():
    """Only where the quick look finds something is a line decoded and asked about."""
    asked = []
    watch = OutputMatcher(needles(), lambda text: asked.append(text) or rules_matching(text))
    one = watch.on("stdout")
    one.feed(b"loss 0.123 lr 0.01\n" * 3000 + NMS + b"\n" + b"loss 0.1\n" * 3000)
    assert asked == [NMS.decode()]


def test_fault_of_ours_leaves_the_output_alone(tmp_path):
    """Nothing is looked for any more; everything is recorded all the same."""

    def broken(text):
        raise ZeroDivisionError(text)

    watch = OutputMatcher([b"word"], broken)
    source = Source(1, -1, OutputLog(tmp_path / "stdout.log"))
    source.watch(watch.on("stdout"))
    source.record(b"a word\n", 1.0)
    source.record(b"another word\n", 2.0)
    source.close()
    assert isinstance(watch.fault, ZeroDivisionError)
    assert (tmp_path / "stdout.log").read_bytes() == b"a word\nanother word\n"


def test_watch_that_comes_late_hears_what_was_printed_before(tmp_path):
    """The child prints from its first moment on, before anybody could ask."""
    source = Source(2, -1, OutputLog(tmp_path / "stderr.log"))
    source.record(NMS + b"\nhalf a li", 1.0)
    watch = OutputMatcher(needles(), rules_matching)
    source.watch(watch.on("stderr"))
    source.record(b"ne\n" + NMS + b"\n", 2.0)
    assert [h.count for h in watch.take()] == [1, 2]


def test_secrets_do_not_come_into_the_record(tmp_path):
    """A line may quote the command: written and told without the secret, judged as it was printed."""
    heard = []
    journal = JournalWriter(tmp_path / "journal.jsonl")
    recorder = EventPipeline(
        journal,
        Engine(RunState()),
        [lambda event, _state: heard.append(event)],
        lambda: 1.0,
        Redactor((), {"API_KEY": "s3cr3t-value"}),
    )
    for event in started():
        recorder.record(event)
    text = "s3cr3t-value: NMS time limit 2.800s exceeded"
    recorder.record(events.OutputMatched(at=1.0, rule="nms-cut-short", stream="stdout", text=text))
    journal.close()
    assert b"s3cr3t" not in (tmp_path / "journal.jsonl").read_bytes()
    assert heard[-2].text == "***: NMS time limit 2.800s exceeded"
    assert isinstance(heard[-1], events.FindingMade)
    assert recorder.state.attempt.printed["nms-cut-short"].text == text


def test_supervised_command_is_heard(tmp_path, capfd):
    """From the child's stdout and stderr through the pump into the journal and to the rule; the output passes unchanged."""
    program = (
        "import sys\n"
        "print('NMS time limit 2.800s exceeded')\n"
        "for _ in range(5): print('NMS time limit 2.800s exceeded', file=sys.stderr)\n"
        "print('done')\n"
    )
    plan = Plan(command=[sys.executable, "-c", program], cwd=str(tmp_path), budget=Budget(attempts=1), keep_awake=False)
    run = folder.create(plan.command, root=tmp_path)
    supervisor.start(run, plan)
    lines = [entry.event for entry in replay(run) if isinstance(entry.event, events.OutputMatched)]
    assert [line.count for line in lines] == [1, 2, 4]
    assert {line.stream for line in lines} <= {"stdout", "stderr"}
    findings = [entry.event.finding for entry in replay(run) if isinstance(entry.event, events.FindingMade)]
    assert "nms-cut-short" in [finding.rule for finding in findings]
    assert capfd.readouterr().out == "NMS time limit 2.800s exceeded\ndone\n"
