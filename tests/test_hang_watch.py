"""A hang needs silence past a learned bound and stacks that stand still; clocks here are numbers."""

from __future__ import annotations

from holdfast.schema.plan import HangSettings
from holdfast.supervisor.hang_watch import HangWatch, Request

SETTINGS = HangSettings(floor_s=60.0, start_floor_s=600.0, factor=10.0, confirm_s=30.0)
STACK = 'Thread 0x01 (most recent call first):\n  File "a.py", line 1 in wait\n'
TWO = 'Thread 0x02 (most recent call first):\n  File "b.py", line 9 in work\n\n' + STACK


def steady(until=100, every=1):
    watch = HangWatch(SETTINGS, 0.0)
    for second in range(0, until, every):
        assert watch.update(float(second), second, stepped=True) is Request.NOTHING
    return watch


def test_silence_and_equal_stacks_are_a_hang():
    watch = steady()
    assert watch.update(158.0, 99, stepped=True) is Request.NOTHING
    assert watch.update(160.0, 99, stepped=True) is Request.DUMP
    assert not watch.add_dump(STACK, 160.5)
    assert watch.update(180.0, 99, stepped=True) is Request.NOTHING
    assert watch.update(190.6, 99, stepped=True) is Request.DUMP
    assert watch.add_dump(STACK, 191.0)


def test_stacks_that_move_are_a_slow_program():
    """It is looked at again, ever more rarely, and never called a hang while it moves."""
    watch = steady()
    now, asked, line = 161.0, [], 0
    while now < 3000.0:
        if watch.update(now, 99, stepped=True) is Request.DUMP:
            asked.append(now)
            line += 1
            assert not watch.add_dump(STACK.replace("line 1", f"line {line}"), now)
        now += 1.0
    assert 4 <= len(asked) <= 12


def test_bound_is_learned_from_the_longest_pause():
    """A run that once paused for 50 s and went on is not suspected before 500 s."""
    watch = steady(until=500, every=50)
    assert watch.bound == 500.0
    assert watch.update(900.0, 450, stepped=True) is Request.NOTHING
    assert watch.update(951.0, 450, stepped=True) is Request.DUMP


def test_start_is_given_more_time():
    """Building a cache for nine minutes is no hang, and teaches nothing about how long a step may take."""
    watch = HangWatch(SETTINGS, 0.0)
    assert watch.update(1.0, 0, stepped=False) is Request.NOTHING
    assert watch.update(590.0, 0, stepped=False) is Request.NOTHING
    assert watch.bound == 600.0
    assert watch.update(595.0, 1, stepped=True) is Request.NOTHING
    assert watch.bound == 60.0


def test_any_sign_of_life_ends_the_suspicion():
    watch = steady()
    assert watch.update(161.0, 99, stepped=True) is Request.DUMP
    watch.add_dump(STACK, 161.0)
    assert watch.update(170.0, 100, stepped=True) is Request.NOTHING
    assert watch.update(200.0, 100, stepped=True) is Request.NOTHING
    assert watch.quiet_for(200.0) == 30.0


def test_sleep_and_suspension_are_no_hang():
    watch = steady()
    watch.reset(5000.0)
    assert watch.update(5050.0, 99, stepped=True) is Request.NOTHING


def test_which_thread_answered_does_not_matter():
    """Two dumps differ in which thread is the current one and in their order, not in where anybody stands."""
    watch = steady()
    watch.update(161.0, 99, stepped=True)
    watch.add_dump(TWO.replace("Thread 0x02", "Current thread 0x02"), 161.0)
    watch.update(195.0, 99, stepped=True)
    assert watch.add_dump(
        STACK.replace("Thread 0x01", "Current thread 0x01") + "\n" + TWO.partition("\n\n")[0] + "\n", 195.0
    )


def test_busy_native_call_gets_more_patience():
    """Equal stacks while the processors work are one long call into a library, until even that is far too long."""
    watch = steady()
    now, asked = 161.0, 0
    while now < 99.0 + 4 * 60.0:
        if watch.update(now, 99, stepped=True) is Request.DUMP:
            asked += 1
            assert not watch.add_dump(STACK, now, busy=True)
        now += 1.0
    assert asked >= 2
    while watch.update(now, 99, stepped=True) is not Request.DUMP:
        now += 1.0
    assert watch.add_dump(STACK, now, busy=True)


def test_nobody_answers():
    """No probe, no stacks, no verdict of a hang; it is asked again, ever more rarely."""
    watch = steady()
    asked = []
    for second in range(161, 20_000):
        if watch.update(float(second), 99, stepped=True) is Request.DUMP:
            asked.append(second)
            watch.dump_failed(float(second))
    assert 5 <= len(asked) <= 12
