"""The line of progress: what it says, and what it leaves out because nobody can know it yet."""

from __future__ import annotations

from histories import seen

from holdfast.render.progress import progress, seconds_an_epoch
from holdfast.schema import events
from holdfast.schema.units import GIB
from holdfast.testing.histories import memory, started, trains


def epochs(*ends, first=1, planned=10):
    """One epoch each, at the moments at which they ended; all took 4 s themselves."""
    return [
        events.Epoch(at=float(at), epoch=n, step=n * 4, seconds=4.0, batches=4, planned=planned, source="ultralytics")
        for n, at in enumerate(ends, start=first)
    ]


def test_the_whole_line():
    line = progress(
        seen(started(), trains(), epochs(10, 20, 30), memory(8.0, rss=2.0)), "stage 1 of 2, warm", later=20.0
    )
    head, epoch, *rest = line.split(", ", 3)
    assert f"{head}, {epoch}" == "stage 1 of 2, warm"
    assert rest[0] == "epoch 3 of 10"
    assert "about 1 min 10 s left in this stage, 4 min 30 s in total" in rest[1]
    assert "memory 2.0 GiB of 10.0 GiB" in rest[1]
    assert rest[1].endswith("useful training time")


def test_time_between_epochs_counts():
    """Validation and saving lie between them: the epochs themselves took 4 s each, and there is one every 10 s."""
    assert seconds_an_epoch(seen(started(), trains(), epochs(10, 20, 30))) == 10.0


def test_one_slow_epoch_does_not_move_it():
    assert seconds_an_epoch(seen(started(), trains(), epochs(10, 20, 30, 900, 910, 920))) == 10.0


def test_after_one_epoch_its_own_time_is_all_there_is():
    assert seconds_an_epoch(seen(started(), trains(), epochs(10))) == 4.0


def test_an_epoch_that_a_new_life_began_in_its_middle_says_nothing():
    assert seconds_an_epoch(seen(started(), trains(), started(attempt=2)[1:], trains(), epochs(40, first=5))) is None


def test_nothing_is_said_of_the_time_where_nobody_knows_how_many_epochs():
    line = progress(seen(started(), trains(), epochs(10, 20, planned=None)), "training")
    assert "epoch 2" in line
    assert "left" not in line


def test_the_last_epoch_leaves_nothing():
    assert "no epochs left" in progress(seen(started(), trains(), epochs(10, 20, planned=2)), "")


def test_room_is_what_the_plan_gives():
    line = progress(seen(started(memory_budget=4 * GIB), trains(), memory(8.0, rss=2.0)), "")
    assert "memory 2.0 GiB of 4.0 GiB" in line
