import copy
import gc
import io
import math
import threading

import pytest
import torch
from inspector_stub import StubProbe, small_model, train

from holdfast.probe.holdfast_probe.inspectors import checkpoint_saves
from holdfast.probe.holdfast_probe.inspectors.checkpoint_saves import CheckpointSavesInspector
from holdfast.probe.holdfast_probe.param_names import ParamNames
from holdfast.schema.events import Saved


@pytest.fixture
def trained(monkeypatch):
    """A probe with the look at torch.save, and a model after two steps."""
    monkeypatch.setattr(torch.nn.Module, "state_dict", torch.nn.Module.state_dict)
    monkeypatch.setattr(torch, "save", torch.save)
    monkeypatch.setattr(torch.serialization, "save", torch.serialization.save)
    probe = StubProbe()
    probe.inspectors.append(CheckpointSavesInspector(probe, ParamNames(probe)))
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    train(probe, model, optimizer, 2)
    return probe, model, optimizer


def saved(probe):
    (event,) = probe.of(Saved)
    return event


def test_saving_the_live_weights_is_equal(trained, tmp_path):
    """Path, size, time and likeness of an ordinary checkpoint; its optimizer state is not mistaken for weights."""
    probe, model, optimizer = trained
    path = tmp_path / "last.pt"
    torch.save({"epoch": 3, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    event = saved(probe)
    assert (event.step, event.path, event.bytes) == (2, str(path), path.stat().st_size)
    assert (event.matches, event.compared, event.nonfinite, event.differing) == ("equal", 4, 0, [])
    assert event.tensors > 4
    assert event.seconds > 0
    assert sum(probe.pauses) >= event.seconds, "saving is not step time"


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "net."])
def test_names_may_have_a_prefix(trained, prefix, tmp_path):
    """DDP, compile and wrappers put something before each name."""
    probe, model, _ = trained
    state = {prefix + name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.save(state, str(tmp_path / "a.pt"))
    assert (saved(probe).matches, saved(probe).compared) == ("equal", 4)


def test_saving_a_part_of_a_larger_model(monkeypatch, tmp_path):
    """The live names are longer than the saved ones when only the inner model is saved."""
    monkeypatch.setattr(torch.nn.Module, "state_dict", torch.nn.Module.state_dict)
    monkeypatch.setattr(torch, "save", torch.save)
    monkeypatch.setattr(torch.serialization, "save", torch.serialization.save)
    probe = StubProbe()
    probe.inspectors.append(CheckpointSavesInspector(probe, ParamNames(probe)))
    whole = torch.nn.Sequential(small_model())
    train(probe, whole, torch.optim.SGD(whole.parameters(), lr=0.1), 2)
    torch.save(whole[0].state_dict(), str(tmp_path / "a.pt"))
    assert (saved(probe).matches, saved(probe).compared) == ("equal", 4)


def test_a_whole_module_in_half_precision_is_a_cast(trained):
    """Saved as a module, in float16, to memory: there is no path, and the weights are a cast of the live ones."""
    probe, model, _ = trained
    torch.save({"ema": copy.deepcopy(model).half()}, io.BytesIO())
    assert (saved(probe).path, saved(probe).matches) == (None, "cast")
    assert saved(probe).bytes > 0


def test_other_weights_differ_and_are_named(trained, tmp_path):
    """A checkpoint of a model that nobody trains."""
    probe, _, _ = trained
    torch.save(small_model(5).state_dict(), tmp_path / "a.pt")
    assert (saved(probe).matches, saved(probe).differing[0]) == ("differs", "0.weight")


def test_an_average_is_near_unless_it_is_known_as_one(trained, tmp_path):
    """A moving average is near the live weights; where an adapter knows the average, it is told as such."""
    probe, model, _ = trained
    average = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.mul_(0.9)
    torch.save(average.half().state_dict(), tmp_path / "a.pt")
    assert (saved(probe).matches, saved(probe).differing) == ("near", [])
    probe.inspectors[0].averages.append(lambda: average)
    torch.save({"ema": average}, tmp_path / "a.pt")
    assert probe.of(Saved)[-1].matches == "average"


def test_the_best_of_several_copies_counts(trained, tmp_path):
    """The raw weights beside their average: the checkpoint holds what is live."""
    probe, model, _ = trained
    torch.save({"ema": small_model(3).state_dict(), "model": model.state_dict()}, tmp_path / "a.pt")
    assert (saved(probe).matches, saved(probe).compared) == ("equal", 8)


def test_non_finite_weights_are_counted_and_equal_themselves(trained, tmp_path):
    """NaN in the live weights and in the saved ones: faithful, and bad."""
    probe, model, _ = trained
    with torch.no_grad():
        model[0].bias[2] = math.nan
    torch.save(model.state_dict(), tmp_path / "a.pt")
    assert (saved(probe).matches, saved(probe).nonfinite) == ("equal", 1)


def test_nothing_to_compare(trained, tmp_path):
    """A file with numbers that are no weights is told, and not judged."""
    probe, _, _ = trained
    torch.save({"losses": torch.arange(5.0), "note": "text"}, tmp_path / "a.pt")
    assert (saved(probe).matches, saved(probe).tensors, saved(probe).compared) == ("not compared", 1, 0)


def test_another_thread_saves_while_the_training_goes_on(trained, tmp_path):
    """Its copy is older than the live weights by right, so it is not compared; and it takes no time from the steps."""
    probe, model, _ = trained
    probe.scalars.thread = threading.get_ident()
    probe.phase = lambda name: pytest.fail(f"the training is not {name}")
    thread = threading.Thread(target=torch.save, args=(model.state_dict(), tmp_path / "a.pt"))
    thread.start()
    thread.join()
    assert saved(probe).matches == "not compared"
    assert probe.pauses == []


def test_a_save_that_fails_raises_as_ever_and_is_not_told(trained, tmp_path):
    """The user's error reaches the user."""
    probe, model, _ = trained
    with pytest.raises(RuntimeError):
        torch.save(model.state_dict(), tmp_path / "missing" / "a.pt")
    assert probe.of(Saved) == []


def test_saves_into_memory_can_get_their_file_later(trained):
    """An adapter that knows which file a buffer becomes collects the save and tells it."""
    probe, model, _ = trained
    with probe.inspectors[0].collect_saves() as held:
        torch.save(model.state_dict(), io.BytesIO())
    assert probe.of(Saved) == []
    probe.inspectors[0].report(dict(held[0], path="/run/last.pt"))
    assert (saved(probe).path, saved(probe).matches) == ("/run/last.pt", "equal")


@pytest.mark.parametrize("cast", [False, True])
def test_weights_that_were_copied_earlier_are_known_again(trained, cast, tmp_path):
    """The best weights, copied in the middle and saved in the end, also in half precision."""
    probe, model, optimizer = trained
    best = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.neg_()  # far away, so that nothing else explains it
    train(probe, model, optimizer, 3)
    torch.save({name: tensor.half() for name, tensor in best.items()} if cast else best, tmp_path / "best.pt")
    assert (saved(probe).matches, saved(probe).differing) == ("earlier", [])


def test_the_weights_before_the_first_step_are_known_again(monkeypatch, tmp_path):
    """Initial weights that are saved at the end, as for a lottery ticket."""
    monkeypatch.setattr(torch.nn.Module, "state_dict", torch.nn.Module.state_dict)
    monkeypatch.setattr(torch, "save", torch.save)
    monkeypatch.setattr(torch.serialization, "save", torch.serialization.save)
    probe, model = StubProbe(), small_model()
    probe.inspectors.append(CheckpointSavesInspector(probe, ParamNames(probe)))
    initial = copy.deepcopy(model.state_dict())
    train(probe, model, torch.optim.SGD(model.parameters(), lr=5.0), 9)
    torch.save(initial, tmp_path / "initial.pt")
    assert saved(probe).matches in ("earlier", "near")


def test_a_model_that_was_trained_before_is_known_again(trained, tmp_path):
    """The folds of a cross-validation, saved one by one in the end."""
    probe, model, first = trained
    other = small_model(9)
    probe.optimizers.remove(first)
    train(probe, other, torch.optim.Adam(other.parameters(), lr=0.1), 3)
    torch.save(model.state_dict(), tmp_path / "fold-1.pt")
    assert saved(probe).matches != "differs"


def test_one_wrong_tensor_among_right_ones_differs(trained, tmp_path):
    """All weights but one are what is live: that one is named."""
    probe, model, _ = trained
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["2.weight"] = torch.randn(3, 8, generator=torch.Generator().manual_seed(4))
    torch.save(state, tmp_path / "a.pt")
    assert (saved(probe).matches, saved(probe).differing) == ("differs", ["2.weight"])


def test_weights_of_zero_differ(trained, tmp_path):
    probe, model, _ = trained
    torch.save({name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}, tmp_path / "a.pt")
    assert saved(probe).matches == "differs"


def test_quantised_weights_are_not_compared(trained, tmp_path):
    """Whole numbers that stand for others are not the weights, and are not held against them."""
    probe, model, _ = trained
    state = {name: (tensor * 100).to(torch.int8) for name, tensor in model.state_dict().items()}
    torch.save(state, tmp_path / "a.pt")
    assert saved(probe).matches == "not compared"


def test_comparing_sets_off_no_collection(trained, monkeypatch):
    """It makes a small object for each tensor, and a collection of all of Ultralytics takes 0.2 s."""
    _, model, _ = trained
    collecting = []
    original = checkpoint_saves.compare

    def compare(*given):
        collecting.append(gc.isenabled())
        return original(*given)

    monkeypatch.setattr(checkpoint_saves, "compare", compare)
    torch.save(model.state_dict(), io.BytesIO())
    assert collecting == [False]
    assert gc.isenabled()
