"""The checks of the environment, held to recorded facts: Macs, laptops and servers that nobody has here."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from holdfast.diagnosis.versions import torchvision_for
from holdfast.frameworks import framework_packages
from holdfast.machine.commands import CommandOutput
from holdfast.machine.linux import LinuxMachine
from holdfast.machine.macos import MacMachine
from holdfast.machine.power import Power, parse_pmset, read_supplies
from holdfast.preflight.case_contexts import GIB, linux, mac
from holdfast.preflight.checks import all_checks
from holdfast.preflight.checks.check import Answer, warn
from holdfast.preflight.checks.context import _query_facts
from holdfast.preflight.checks.interpreter import Reply, parse_facts
from holdfast.preflight.checks.runner import run_all
from holdfast.probe.holdfast_probe.env_scripts import facts

ENVIRONMENT = [check for check in all_checks() if check.kind == "environment"]
CASES = [(check, case) for check in all_checks() for case in check.cases()]


@pytest.mark.parametrize(("check", "case"), CASES, ids=[f"{check.id}: {case.description}" for check, case in CASES])
def test_check_keeps_its_cases(check, case):
    """A check speaks on bad grounds with the right severity, with evidence, and passes on good ones."""
    (result,) = run_all([check], case.context)
    assert result.status == case.expected, result
    assert result.message
    for found in result.findings:
        assert found.rule == check.id
        assert found.evidence
        assert found.message.endswith(".")


@pytest.mark.parametrize("check", ENVIRONMENT, ids=lambda check: check.id)
def test_check_has_cases_of_both_sorts(check):
    speaks = {case.expected in ("warn", "fatal") for case in check.cases()}
    assert speaks == {True, False}


def result_of(name, context):
    (result,) = run_all([check for check in ENVIRONMENT if check.id == name], context)
    return result


def test_remedy_of_the_first_report_names_the_version():
    """Not "never use MPS": the version that mends it, first."""
    result = result_of("versions-known-bad", mac(torch="2.2.1", macos="14.4.1", packages={"numpy": "1.26.4"}))
    assert result.findings[0].remedies[0] == "install torch 2.3 or newer"
    assert "pytorch#122016" in " ".join(result.findings[0].evidence)


@pytest.mark.parametrize(("context", "status"), [(mac, "fatal"), (linux, "passed")])
def test_known_bug_of_a_framework_on_a_mac(context, status):
    assert result_of("versions-known-bad", context(packages={"ultralytics": "8.3.203"})).status == status
    assert result_of("versions-known-bad", context(packages={"ultralytics": "8.4.190"})).status == "passed"


@pytest.mark.parametrize(
    ("free", "settings", "status"),
    [
        (3 * GIB, {"model": "yolo11n.pt"}, "passed"),
        (3 * GIB, {"model": "yolo11x.yaml"}, "warn"),
        (30 * GIB, {"model": "yolo11x.yaml", "epochs": 100, "save_period": 1}, "warn"),
        (GIB // 2, {"model": "yolo11x.yaml"}, "fatal"),
    ],
)
def test_space_for_the_checkpoints_of_a_model(tmp_path, free, settings, status):
    context = linux(free_disk=lambda _: free, cwd=tmp_path, settings=settings)
    assert result_of("disk-enough", context).status == status


def test_torchvision_is_named_with_its_source():
    facts = {"torchvision": "RuntimeError: operator torchvision::nms does not exist"}
    (found,) = result_of("torchvision-loads", linux(facts=facts)).findings
    assert "torchvision==0.28.*" in found.remedies[0]
    assert "the package index that this CPU build of torch came from" in found.remedies[0]
    assert "holdfast run" in found.message
    assert torchvision_for((2, 13, 0)) == (0, 28)
    assert torchvision_for((1, 13)) is None


def test_device_auto_names_the_fastest_that_works():
    lines = ({"device": "mps", "problem": None, "seconds": 0.02}, {"device": "cpu", "problem": None, "seconds": 0.01})
    assert "cpu is the fastest" in result_of("device-usable", mac(device="auto", reply=Reply(lines))).message


def test_devices_are_asked_for_as_torch_calls_them():
    """Ultralytics' "0,1" is cuda:0 and cuda:1."""
    from holdfast.preflight.checks.device_usable import _list_devices

    torch = linux().interpreter.torch
    assert _list_devices("0,1", torch) == ["cuda:0", "cuda:1"]
    assert _list_devices("cuda", torch) == ["cuda:0"]
    assert _list_devices("cuda:1", torch) == ["cuda:1"]
    assert _list_devices("mps", torch) == ["mps"]
    assert _list_devices(None, torch) == ["cpu"]


def test_memory_of_a_cache_is_counted(tmp_path):
    """cache=ram holds every image at the chosen size."""
    from holdfast.preflight.checks import estimates

    for split in ("train", "val"):
        (tmp_path / "images" / split).mkdir(parents=True)
        for n in range(10):
            (tmp_path / "images" / split / f"{n}.jpg").write_bytes(b"")
    data = tmp_path / "d.yaml"
    data.write_text(f"path: {tmp_path}\ntrain: images/train\nval: images/val\nnames: [a]\n")
    without, _ = estimates.estimate_memory(linux(data=data, settings={"imgsz": 640}))
    with_it, why = estimates.estimate_memory(linux(data=data, settings={"imgsz": 640, "cache": "ram"}))
    assert with_it - without == 20 * 640 * 640 * 3
    assert "cache=ram" in why


def test_workers_are_bounded_by_cores_and_none_on_mps():
    from holdfast.preflight.checks import estimates

    yolo = {"command": ("yolo", "train")}
    many, why = estimates.estimate_memory(linux(**yolo, device="cuda:0", settings={"workers": 64}, cores=4))
    assert "4 loader workers" in why
    none, why = estimates.estimate_memory(mac(**yolo, settings={"workers": 64}))
    assert "workers" not in why
    assert many > none


# --- what the interpreter says of itself ------------------------------------------------------------------------------

PYTHON = {
    "fact": "python",
    "executable": "/v/bin/python",
    "python": "3.11.9",
    "macos": "15.5",
    "packages": {"torch": "2.9.1"},
}
TORCH = {"fact": "torch", "version": "2.9.1", "devices": ["mps", "cpu"]}
BEGUN = {"fact": "trying", "what": "torch"}


def test_interpreter_that_dies_in_importing_torch_is_still_known():
    """What it said before is kept; that torch is installed and crashes is told from its absence."""
    python = parse_facts(Reply((PYTHON, BEGUN), -11, "Fatal Python error\nSegmentation fault"))
    assert (python.torch, python.on_mac, python.died) == (None, True, "torch: it was killed by SIGSEGV")
    assert "cannot be imported" in python.no_torch
    assert result_of("versions-known-bad", mac(facts={"torch": None, "no_torch": python.no_torch})).status == "fatal"


def test_interpreter_without_torch_says_so():
    failed = {"fact": "failed", "what": "torch", "error": "ModuleNotFoundError: No module named 'torch'"}
    python = parse_facts(Reply(({**PYTHON, "packages": {}}, BEGUN, failed)))
    assert python.no_torch == "torch is not installed in /v/bin/python"
    assert python.died == ""


def test_interpreter_that_dies_beside_faiss_names_it():
    tried = {"fact": "trying", "what": "faiss"}
    openmp = {"fact": "openmp", "after": "torch", "files": ["/torch/lib/libomp.dylib"]}
    words = "OMP: Error #15: Initializing libomp.dylib, but found libomp.dylib already initialized."
    python = parse_facts(Reply((PYTHON, BEGUN, TORCH, openmp, tried), -6, words))
    assert python.torch.devices == ["mps", "cpu"]
    assert python.died == "faiss: it was killed by SIGABRT"
    assert python.last_lines == words


def test_what_says_nothing_is_no_interpreter():
    assert parse_facts(Reply((), 1, "zsh: killed")) is None


# --- power ------------------------------------------------------------------------------------------------------------

ON_BATTERY = """\
Now drawing from 'Battery Power'
 -InternalBattery-0 (id=22806627)\t78%; discharging; 5:05 remaining present: true
"""
ON_MAINS = """\
Now drawing from 'AC Power'
 -InternalBattery-0 (id=22806627)\t100%; charged; 0:00 remaining present: true
"""
DESKTOP = "Now drawing from 'AC Power'\n"
SETTINGS = """\
System-wide power settings:
Currently in use:
 standby              1
 Sleep On Power Button 1
 hibernatefile        /var/vm/sleepimage
 powernap             1
 disksleep            10
 sleep                1 (sleep prevented by powerd, sharingd)
 hibernatemode        3
 displaysleep         10
 tcpkeepalive         1
 lowpowermode         1
"""
NEVER = "System-wide power settings:\n SleepDisabled\t\t1\nCurrently in use:\n sleep                1\n powermode            2\n"


@pytest.mark.parametrize(
    ("battery", "settings", "power"),
    [
        (ON_BATTERY, SETTINGS, Power(on_battery=True, charge=78, sleeps_after=1, saving=True)),
        (ON_MAINS, NEVER, Power(on_battery=False, charge=100, sleeps_after=0, saving=False)),
        (DESKTOP, "", Power(on_battery=False)),
        ("", "", Power()),
    ],
)
def test_pmset_is_read(battery, settings, power):
    assert parse_pmset(battery, settings) == power


def test_mac_asks_pmset():
    answers = {("pmset", "-g", "batt"): ON_BATTERY, ("pmset", "-g"): SETTINGS}
    machine = MacMachine(run_command=lambda command, _: CommandOutput(answers[tuple(command)]), reports=())
    assert machine.power() == Power(on_battery=True, charge=78, sleeps_after=1, saving=True)


def supplies(folder, **named):
    for name, files in named.items():
        (folder / "class/power_supply" / name).mkdir(parents=True)
        for file, text in files.items():
            (folder / "class/power_supply" / name / file).write_text(f"{text}\n")
    return LinuxMachine(sys=folder).power()


BATTERY = {"type": "Battery", "scope": "System", "capacity": 41}


def test_linux_on_battery(tmp_path):
    power = supplies(tmp_path, BAT0={**BATTERY, "status": "Discharging"}, AC={"type": "Mains", "online": 0})
    assert power == Power(on_battery=True, charge=41)


def test_linux_on_mains_with_a_mouse(tmp_path):
    """A mouse's battery is not the machine's."""
    mouse = {"type": "Battery", "scope": "Device", "status": "Discharging", "capacity": 5}
    power = supplies(tmp_path, BAT0={**BATTERY, "status": "Charging"}, AC={"type": "Mains", "online": 1}, mouse=mouse)
    assert power == Power(on_battery=False, charge=41)


def test_server_has_no_battery(tmp_path):
    assert read_supplies(tmp_path / "none", tmp_path / "none") == Power()


def test_energy_is_saved_by_profile(tmp_path):
    profile = tmp_path / "platform_profile"
    profile.write_text("low-power\n")
    assert read_supplies(tmp_path / "none", profile).saving is True
    profile.write_text("balanced\n")
    assert read_supplies(tmp_path / "none", profile).saving is False


def test_finding_is_made_under_the_checks_name():
    check = replace(all_checks()[0], id="swap-in-use", needs=(), run=lambda _: Answer("", (warn("It swaps."),)))
    (result,) = run_all([check], linux())
    assert result.findings[0].rule == "swap-in-use"


def test_versions_of_the_packages_of_frameworks_are_asked_for():
    asked = []
    _query_facts(lambda *given: asked.append(given) or Reply((PYTHON,)), frozenset({"faiss"}), ["python"], 1.0)
    ((_, (packages, *libraries), *_),) = asked
    assert {"torch", "numpy", *framework_packages()} <= set(packages.split(","))
    assert libraries == ["faiss"]
    assert facts.get_versions(["msgspec", "no-such-package"]) == {"msgspec": msgspec.__version__}
