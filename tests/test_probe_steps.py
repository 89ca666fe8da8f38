"""Which calls of `Optimizer.step` the probe counts, and what it says of each."""

import textwrap

from probe_harness import run

from holdfast.schema import events

TINY = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
data = torch.randn(8, 3)
def loss():
    return model(data).square().mean()
"""


def tiny(text):
    return TINY + textwrap.dedent(text)


def test_each_step_gets_a_line_with_its_loss_rate_and_norm(tmp_path):
    """One optimizer: a line a step, the loss as the training saw it, the unclipped norm, the heartbeat exact at the end."""
    probed = run(
        tmp_path,
        tiny("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            value = loss()
            value.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            print(value.item(), norm.item())
        """),
    )
    printed = [tuple(map(float, line.split())) for line in probed.out.splitlines()]
    lines = probed.of(events.Step)
    assert [line.step for line in lines] == [1, 2, 3, 4, 5]
    assert [(line.loss, line.grad_norm) for line in lines] == [
        (float(f"{loss:.9g}"), float(f"{norm:.9g}")) for loss, norm in printed
    ]
    assert all(line.lr == [0.1] and line.backwards == 1 for line in lines)
    assert probed.beats[0].step == 5
    assert probed.beats[0].loss == lines[-1].loss or abs(probed.beats[0].loss - lines[-1].loss) < 1e-8
    assert probed.beats[0].phase == "ended"
    assert probed.coverage.step_source == "optimizer"
    assert probed.of(events.ProcessExiting)[0].step == 5


def test_accumulation_counts_backwards_and_means_their_losses(tmp_path):
    """Four backwards and one step: one step whose loss is the mean of four, `backwards` 4."""
    probed = run(
        tmp_path,
        tiny("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        for step in range(2):
            for micro in range(4):
                (loss() * 0 + micro).backward()
            optimizer.step()
        """),
    )
    assert [(line.step, line.backwards, line.loss) for line in probed.of(events.Step)] == [(1, 4, 1.5), (2, 4, 1.5)]


def test_wrapped_and_nested_optimizers_count_once(tmp_path):
    """A plain wrapper, a subclass that steps an inner optimizer, and an inherited step: one step each time."""
    probed = run(
        tmp_path,
        tiny("""
        class Wrapper:
            def __init__(self, inner): self.inner = inner
            def step(self): return self.inner.step()
        class Lookahead(torch.optim.Optimizer):
            def __init__(self, inner):
                super().__init__(inner.param_groups, {})
                self.inner = inner
            def step(self, closure=None):
                return self.inner.step(closure)
        class Inherited(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.optim.SGD(model.parameters(), lr=0.1)
        for optimizer in (Wrapper(inner), Lookahead(inner), Inherited(model.parameters(), lr=0.1)):
            for _ in range(3):
                optimizer_steps = optimizer
                loss().backward()
                optimizer.step()
        """),
    )
    # The inner optimizer is the clock for three steps; the other two count beside it, once for each call.
    assert probed.steps == [1, 2, 3]
    assert probed.coverage.optimizers == ["SGD", "Lookahead", "Inherited"]


def test_a_lookahead_from_the_start_is_the_clock(tmp_path):
    """An optimizer that steps others inside is itself the clock, and its inner steps are not counted at all."""
    probed = run(
        tmp_path,
        tiny("""
        class Lookahead(torch.optim.Optimizer):
            def __init__(self, inner):
                super().__init__(inner.param_groups, {})
                self.inner = inner
            def step(self, closure=None):
                self.inner.step(closure)
                return self.inner.step(closure)
        optimizer = Lookahead(torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(4):
            loss().backward()
            optimizer.step()
        """),
    )
    assert probed.steps == [1, 2, 3, 4]
    assert all(line.other_steps is None for line in probed.of(events.Step))
    assert probed.coverage.optimizers == ["Lookahead"]


def test_a_step_that_raised_does_not_hide_the_next(tmp_path):
    """An optimizer that raises inside its step leaves no trace: the steps after it count, and nest, as ever."""
    probed = run(
        tmp_path,
        tiny("""
        class Fragile(torch.optim.SGD):
            fails = False
            def step(self, closure=None):
                if self.fails:
                    raise ValueError("no")
                return super().step(closure)
        torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = Fragile(model.parameters(), lr=0.1)
        for step in range(6):
            loss().backward()
            optimizer.fails = step % 2 == 1
            try:
                optimizer.step()
            except ValueError:
                pass
        """),
    )
    assert probed.steps == [1, 2, 3]
    assert [line.backwards for line in probed.of(events.Step)] == [1, 2, 2]


def test_further_optimizers_are_counted_beside_the_clock(tmp_path):
    """A GAN's two optimizers: the first to step is the clock, the other's steps and loss stand beside."""
    probed = run(
        tmp_path,
        tiny("""
        critic = torch.nn.Linear(3, 1)
        first = torch.optim.Adam(model.parameters(), lr=0.1)
        second = torch.optim.Adam(critic.parameters(), lr=0.1)
        for _ in range(3):
            (loss() * 0 + 1).backward()
            first.step()
            for _ in range(2):
                (critic(data).mean() * 0 + 7).backward()
                second.step()
        """),
    )
    lines = probed.of(events.Step)
    assert [line.loss for line in lines] == [1.0, 1.0, 1.0]
    assert [line.other_steps for line in lines] == [None, {"Adam#2": 2}, {"Adam#2": 2}]
    assert lines[1].other_losses == {"Adam#2": 7.0}


def test_a_new_optimizer_takes_over_the_clock(tmp_path):
    """A second stage with an optimizer of its own: counting goes on when the first one is gone, or long silent."""
    probed = run(
        tmp_path,
        tiny("""
        def train(optimizer, steps):
            for _ in range(steps):
                loss().backward()
                optimizer.step()
        train(torch.optim.SGD(model.parameters(), lr=0.1), 3)
        kept = torch.optim.SGD(model.parameters(), lr=0.1)
        train(kept, 2)
        train(torch.optim.Adam(model.parameters(), lr=0.1), 105)
        """),
    )
    assert probed.steps == list(range(1, 11))
    assert probed.of(events.Step)[5].other_steps == {"Adam": 100}


def test_an_lbfgs_step_is_one_step_with_its_first_loss(tmp_path):
    """Closures: however often they run, one step, one backward, and the first closure's loss."""
    probed = run(
        tmp_path,
        tiny("""
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
        for _ in range(3):
            seen = []
            def closure():
                optimizer.zero_grad()
                value = loss()
                value.backward()
                seen.append(value.item())
                return value
            optimizer.step(closure)
            print(seen[0], len(seen))
        """),
    )
    first = [float(f"{float(line.split()[0]):.9g}") for line in probed.out.splitlines()]
    assert int(probed.out.split()[1]) > 1
    assert probed.losses == first
    assert [line.backwards for line in probed.of(events.Step)] == [1, 1, 1]


def test_steps_inside_a_backward_count_as_one(tmp_path):
    """An optimizer for each parameter, stepped by hooks during the backward: one step a backward."""
    probed = run(
        tmp_path,
        tiny("""
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
        def step_at_once(p):
            optimizers[p].step()
            optimizers[p].zero_grad()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step_at_once)
        for _ in range(4):
            loss().backward()
        """),
    )
    assert probed.steps == [1, 2, 3, 4]
    assert probed.coverage.step_source == "optimizer in backward"
    assert all(line.lr == [0.1] for line in probed.of(events.Step))


def test_without_any_optimizer_backwards_count(tmp_path):
    """A hand-written update: every outermost backward is a step, reentrant ones are not, and `step_source` says so."""
    probed = run(
        tmp_path,
        tiny("""
        from torch.utils.checkpoint import checkpoint
        for _ in range(4):
            hidden = checkpoint(model, data.requires_grad_(), use_reentrant=True)
            hidden.square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
                    p.grad = None
        """),
    )
    assert probed.steps == [1, 2, 3, 4]
    assert probed.coverage.step_source == "backward"
    assert probed.beats[0].step == probed.beats[0].backwards == 4


def test_gradients_asked_for_count_only_where_they_are_the_training(tmp_path):
    """`autograd.grad` of parameters is a backward where nothing else is; a gradient penalty never becomes the loss."""
    alone = run(
        tmp_path / "alone",
        tiny("""
        for _ in range(3):
            grads = torch.autograd.grad(loss() * 0 + 2, list(model.parameters()))
        """),
    )
    assert (alone.steps, alone.losses) == ([1, 2, 3], [2.0, 2.0, 2.0])
    penalty = run(
        tmp_path / "penalty",
        tiny("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.autograd.grad(loss(), list(model.parameters()))
        for _ in range(3):
            points = data.clone().requires_grad_()
            out = model(points)
            grad, = torch.autograd.grad(out.sum(), points, create_graph=True)
            (grad.square().sum() * 0 + 5).backward()
            torch.autograd.grad(model(data).sum(), list(model.parameters()))
            optimizer.step()
        """),
    )
    assert (penalty.steps, penalty.losses) == ([1, 2, 3], [5.0, 5.0, 5.0])


def test_dropped_hooks_are_noticed(tmp_path):
    """torch before 2.3 unwraps `step` at the first torch.compile: it is said, and backwards count from then on."""
    probed = run(
        tmp_path,
        tiny("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def train(steps):
            for _ in range(steps):
                loss().backward()
                optimizer.step()
        train(3)
        torch.optim.SGD.step = torch.optim.SGD.step.__wrapped__
        torch.optim.SGD.step.hooked = True
        train(20)
        """),
    )
    assert probed.coverage.step_source == "backward"
    assert "drops optimizer hooks" in probed.coverage.missing["steps"]
    assert probed.steps == list(range(1, 3 + 20 - 7 + 1))


def test_backwards_of_an_evaluation_are_not_steps(tmp_path):
    """Ten steps, three hundred gradients of the input (an attack, a saliency map), ten steps: twenty steps, it is said that
    the rest was not counted, and the loss of the eleventh step is not mixed with theirs."""
    probed = run(
        tmp_path,
        tiny("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def train(steps):
            for _ in range(steps):
                optimizer.zero_grad()
                (loss() * 0 + 1).backward()
                optimizer.step()
        train(10)
        points = data.clone().requires_grad_()
        for _ in range(300):
            (model(points).sum() * 0 + 100).backward()
        train(10)
        """),
    )
    assert probed.steps == list(range(1, 21))
    assert probed.losses == [1.0] * 20
    assert probed.beats[0].step == 20
    assert probed.coverage.step_source == "optimizer"
    assert "not counted" in probed.coverage.seen["steps"]


def test_a_step_that_raised_keeps_nothing_alive(tmp_path):
    """Whoever catches an error of a step, drops everything and tries again smaller, finds the memory free: no frame, model,
    optimizer, loss, gradient or copy of ours is left. The same for an error inside a backward."""
    probed = run(
        tmp_path,
        tiny("""
        import gc, sys, weakref
        class Fragile(torch.optim.Adam):
            def step(self, closure=None):
                if closure is None:
                    super().step()
                else:
                    big = torch.zeros(1000, 1000)
                    alive.append(weakref.ref(big))
                    closure()
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(context, x):
                return x.clone()
            @staticmethod
            def backward(context, grad):
                raise MemoryError
        def fail():
            raise MemoryError
        def attempt(in_step):
            local = torch.zeros(1000, 1000)
            model = torch.nn.Linear(3, 1)
            optimizer = Fragile(model.parameters(), lr=0.1)
            for _ in range(3):
                loss = model(data).square().mean()
                loss.backward()
                optimizer.step()
            loss = model(data).square().mean()
            alive.extend(map(weakref.ref, (local, optimizer, loss, model, *model.parameters())))
            loss.backward()
            alive.append(weakref.ref(model.weight.grad))
            if in_step:
                optimizer.step(fail)
            else:
                Fails.apply(model(data)).sum().backward()
        movement = next(one for one in sys.modules["holdfast_probe.probe"]._probe.inspectors[0].inspectors if one.name == "weight-updates")
        for in_step in (True, False):
            alive = []
            try:
                attempt(in_step)
            except MemoryError:
                pass
            gc.collect()
            print(sum(reference() is not None for reference in alive), len(movement._pending))
        """),
    )
    assert probed.out == "0 0\n0 0\n"


def test_steps_of_two_threads_do_not_hide_each_other(tmp_path):
    """A step that begins while another thread is inside one: both count."""
    probed = run(
        tmp_path,
        tiny("""
        import threading
        inside, go_on = threading.Event(), threading.Event()
        class Slow(torch.optim.Optimizer):
            def step(self, closure=None):
                inside.set()
                go_on.wait(30)
        slow = Slow(model.parameters(), {})
        loss().backward()
        thread = threading.Thread(target=slow.step)
        thread.start()
        inside.wait(30)
        torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1).step()
        go_on.set()
        thread.join()
        slow.step()
        """),
    )
    assert probed.coverage.optimizers == ["SGD", "Slow"]
    assert probed.beats[0].step == 3


def test_numbering_goes_on_from_the_resumed_step(tmp_path):
    """With HOLDFAST_FIRST_STEP the first step of this attempt is the one after it."""
    probed = run(
        tmp_path,
        tiny("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            loss().backward()
            optimizer.step()
        """),
        HOLDFAST_FIRST_STEP="500",
    )
    assert probed.steps == [501, 502]
    assert probed.of(events.ProbeAttached)[0].first_step == 500
    assert probed.beats[0].step == 502


def test_the_resumed_step_is_for_the_first_training_only(tmp_path):
    """What the resumed training starts, and what comes after it in the same attempt, counts from one."""
    probed = run(
        tmp_path,
        tiny("""
        import os, subprocess, sys
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loss().backward()
        optimizer.step()
        print("HOLDFAST_FIRST_STEP" in os.environ)
        if "INNER" not in os.environ:
            subprocess.run([sys.executable, __file__], env=dict(os.environ, INNER="1", HOLDFAST_FIRST_STEP="500"), check=True)
        """),
        HOLDFAST_FIRST_STEP="500",
    )
    assert probed.out == "False\nFalse\n"
    assert probed.steps == [501]
    (inner,) = [name for name in probed.files if "-pid-" in name]
    assert [event.step for event in probed.by_file[inner] if isinstance(event, events.Step)] == [1]


def test_schedules_are_told_with_their_totals(tmp_path):
    """Schedulers with a planned total say it at the next step, and how far they came at the end."""
    probed = run(
        tmp_path,
        tiny("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=40)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7)
        for _ in range(5):
            loss().backward()
            optimizer.step()
            schedule.step()
        """),
    )
    told = [(event.scheduler, event.planned, event.done) for event in probed.of(events.Schedule)]
    assert told == [
        ("OneCycleLR", 40, 0),
        ("CosineAnnealingLR", 7, 0),
        ("OneCycleLR", 40, 5),
        ("CosineAnnealingLR", 7, 0),
    ]


def test_the_short_way_counts_as_the_long_one(tmp_path):
    """Hundreds of very short steps, with epochs, an evaluation, a second optimizer, a pause and a failing step among them."""
    probed = run(
        tmp_path,
        """
        import sys, time, torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
        loader = torch.utils.data.DataLoader(torch.randn(74, 2), batch_size=2)
        quick = late = 0
        done = 0
        def step(x):
            global done, quick, late
            optimizer.zero_grad()
            model(x).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            short = sys.modules["holdfast_probe.probe"]._probe.fast_path.on
            quick += short
            late += short and epoch > 30
            optimizer.step()
            done += 1
        for epoch in range(40):
            for x in loader:
                step(x)
            if epoch == 20:
                with torch.no_grad():
                    for x in loader:
                        model(x)
            if epoch == 25:
                for _ in range(3):
                    (other.param_groups[0]["params"][0] * 2).sum().backward()
                    other.step()
            if epoch == 30:
                def fails():
                    raise KeyError
                try:
                    optimizer.step(fails)
                except KeyError:
                    pass
        print(done, quick, late)
        """,
    )
    done, quick, late = map(int, probed.out.split())
    assert done == 40 * 37
    assert quick > 400
    assert late > 150  # the other optimizer still lives, and does not step any more
    assert probed.beats[0].step == done
    counted = list(probed.of(events.Step))
    windows = probed.of(events.Steps)
    assert len(counted) + sum(window.last - window.first + 1 for window in windows) == done
    steps_of = [window.last - window.first + 1 for window in windows]
    assert [window.loss.n for window in windows] == [window.grad_norm.n for window in windows] == steps_of
    assert sum(window.samples for window in windows) + sum(step.samples for step in counted) == done * 2
    assert [step for step in counted if step.grad_norm is None or list(step.lr) != [0.01]] == []
    assert [event.batches for event in probed.of(events.Epoch)] == [37] * 40
    # What happens in between is written in its order: an epoch's end comes after all of its steps.
    last = 0
    for event in probed.of((events.Step, events.Steps, events.Epoch)):
        if isinstance(event, (events.Step, events.Steps)):
            last = event.step if isinstance(event, events.Step) else event.last
        elif isinstance(event, events.Epoch) and event.step <= len(counted):
            assert last == event.step
    assert [event.fetches for event in probed.of(events.Evaluation)] == [37]
    beside = [event.other_steps for event in (*counted, *windows) if event.other_steps]
    assert beside == [{"SGD#2": 3}]
    assert sum(event.samples for event in (*counted, *windows)) == 74 * 40


def test_the_short_way_ends_with_a_pass(tmp_path):
    """Workers that outlive a pass are read through the same iterator again: each pass is an epoch of its own."""
    probed = run(
        tmp_path,
        """
        import torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = torch.utils.data.DataLoader(torch.randn(60, 2), batch_size=2, num_workers=1, persistent_workers=True)
        for epoch in range(10):
            for x in loader:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()
        """,
    )
    assert probed.beats[0].step == 300
    assert [event.batches for event in probed.of(events.Epoch)] == [30] * 10


def test_on_the_short_way_a_loss_that_is_not_finite_is_written_at_once(tmp_path):
    """The process may be gone in the next moment."""
    probed = run(
        tmp_path,
        """
        import os, sys, torch
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        step = 0
        while step < 3000:
            step += 1
            short = sys.modules["holdfast_probe.probe"]._probe.fast_path.on
            last = step > 2000 and short
            (weight * (float("nan") if last else 2.0)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if last:
                print(step, flush=True)
                os._exit(0)
        """,
    )
    step = int(probed.out)
    assert next(event.step for event in probed.of(events.Step) if event.loss != 2.0) == step


def test_a_scaler_is_understood_in_short_steps_too(tmp_path):
    """Its steps are none that were skipped, and its losses are those before scaling."""
    probed = run(
        tmp_path,
        """
        import torch
        weight = torch.nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        for step in range(1500):
            scaler.scale((weight * 2.0).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        """,
    )
    assert probed.beats[0].step == 1500
    assert probed.of(events.Skipped) == []
    assert {event.loss for event in probed.of(events.Step)} == {2.0}
    assert {(window.loss.low, window.loss.high) for window in probed.of(events.Steps)} == {(2.0, 2.0)}
