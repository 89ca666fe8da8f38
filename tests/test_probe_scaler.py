"""Gradient scalers: the loss as it was, and the steps that did not come."""

from probe_harness import run
from test_probe_steps import tiny

from holdfast.schema import events

SCALED = """
optimizer = torch.optim.{optimizer}
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for step in range(6):
    optimizer.zero_grad()
    value = loss() * 0 + step
    scaler.scale(value).backward()
    if step % 3 == 1:
        model.weight.grad.fill_(float("inf"))
    scaler.step(optimizer)
    scaler.update()
"""


def test_skipped_steps_are_events_and_not_steps(tmp_path):
    """Two of six steps are skipped for infinite gradients: four steps, two events, losses without the scale."""
    probed = run(tmp_path, tiny(SCALED.format(optimizer="SGD(model.parameters(), lr=0.1)")))
    assert probed.steps == [1, 2, 3, 4]
    assert probed.losses == [0.0, 2.0, 3.0, 5.0]
    assert [(skip.step, skip.optimizer) for skip in probed.of(events.Skipped)] == [(1, "SGD"), (3, "SGD")]
    assert [line.backwards for line in probed.of(events.Step)] == [1, 1, 1, 1]


def test_a_fused_optimizer_that_skips_inside_is_seen(tmp_path):
    """A fused optimizer gets `found_inf` and skips by itself: on the CPU that is read, and is no step either."""
    probed = run(tmp_path, tiny(SCALED.format(optimizer="AdamW(model.parameters(), lr=0.1, fused=True)")))
    assert probed.steps == [1, 2, 3, 4]
    assert len(probed.of(events.Skipped)) == 2


def test_the_scale_is_undone_in_what_is_made_of_a_scaled_loss(tmp_path):
    """A loss computed from the scaled one, and a list of scaled ones: still the loss that the user meant."""
    probed = run(
        tmp_path,
        tiny("""
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        def step():
            scaler.step(optimizer)
            scaler.update()
        (scaler.scale(loss() * 0 + 3) / 2).backward()
        step()
        torch.autograd.backward(scaler.scale([loss() * 0 + 3, loss() * 0 + 4]))
        step()
        """),
    )
    assert probed.losses == [1.5, 7.0]
