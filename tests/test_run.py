"""`python -m tracer run`: the program cannot tell that it is recorded, and the window is what was asked for."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tracer
from tests.running import ENVIRONMENT, LOOP, SHORT, Ran, run_tracer
from tracer.commands import main
from tracer.errors import UsageError
from tracer.readers import load
from tracer.recording.facts import clean_arguments, clean_environment

CONFIGS = Path(__file__).resolve().parents[1] / "configs"

ASKS = (
    LOOP
    + """
import json, pickle, signal, threading
class Mine:
    pass
train(12)
print(json.dumps({
    "name": __name__, "argv": sys.argv, "first": sys.path[0], "path": sys.path, "cwd": os.getcwd(), "file": __file__,
    "spec": repr(__spec__), "threads": [thread.name for thread in threading.enumerate()], "stdin": sys.stdin.read(),
    "meta": [repr(type(finder)) for finder in sys.meta_path],
    "pickled": type(pickle.loads(pickle.dumps(Mine()))).__module__,
    "signals": [repr(signal.getsignal(number)) for number in range(1, 32)], "hooks": repr(sys.excepthook),
    "torch": sorted(name for name in sys.modules if name.startswith("torch")),
    "exit": os._exit.__name__, "flags": repr(sys.flags), "isatty": sys.stdout.isatty(),
}))
"""
)


def test_the_program_cannot_tell_that_it_is_recorded(tmp_path: Path):
    ran = run_tracer(tmp_path, ASKS, "--epochs", "1", "", "a b", input="from stdin")

    alone = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), "--epochs", "1", "", "a b"],
        input="from stdin",
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT,
        check=True,
    )
    assert json.loads(ran.stdout) == json.loads(alone.stdout)
    assert ran.stderr == alone.stderr == ""
    assert ran.manifest["complete"]


def test_the_window_has_the_steps_that_were_asked_for(tmp_path: Path):
    ran = run_tracer(tmp_path, LOOP + "train(12)")

    manifest = ran.manifest
    assert manifest["steps_from"] == "optimizer"
    assert (manifest["window"]["first_step"], manifest["window"]["last_step"]) == (4, 7)
    assert [name for name in ran.names if name.startswith("ProfilerStep#")] == [
        f"ProfilerStep#{n}" for n in range(4, 8)
    ]
    assert ran.names.count("aten::linear") == 4
    # Each boundary is stamped once; the steps that warm up are cut off, and so is the pause for writing.
    assert [(row[2], row[4]) for row in ran.steps()] == [
        *[(number, False) for number in (0, 1, 2, 3, -1)],
        *[(number, True) for number in (4, 5, 6, 7)],
        *[(number, False) for number in (8, 8, 9, 10, 11, 12)],
    ]
    assert list(json.loads((ran.ranks[0] / "sources.json").read_text())) == [str(tmp_path / "program.py")]


def test_a_program_without_steps_is_recorded_whole(tmp_path: Path):
    ran = run_tracer(tmp_path, "import torch\nfor _ in range(20):\n    torch.ones(8) + 1\n", settings=())

    assert ran.manifest["complete"]
    assert ran.manifest["steps_from"] == "time"
    assert ran.names.count("aten::add") == 20


def test_a_window_of_seconds_opens_and_closes_by_the_clock(tmp_path: Path):
    program = "import torch, time, threading\nends = time.monotonic() + 4\nwhile time.monotonic() < ends:\n"
    program += "    torch.ones(8) + 1\nprint([thread.name for thread in threading.enumerate()])\n"
    ran = run_tracer(tmp_path, program, settings=("window.skip=1", "window.seconds=0.5", "record.samples=false"))

    window = ran.manifest["window"]
    assert ran.stderr == ""  # Kineto warns of being used on a thread of its own
    assert ran.manifest["complete"]
    assert ran.stdout == "['MainThread']\n"
    assert 0.4e9 < window["end_mono_ns"] - window["start_mono_ns"] < 2e9
    assert ran.names.count("aten::add") > 20


def test_tracer_step_marks_the_steps(tmp_path: Path):
    program = "import torch, tracer\nfor _ in range(12):\n    torch.ones(8) + 1\n    tracer.step()\n"
    ran = run_tracer(tmp_path, program)

    assert ran.manifest["steps_from"] == "tracer"
    assert ran.names.count("aten::add") == 4


def test_stop_after_ends_the_program_with_its_window(tmp_path: Path):
    program = (
        LOOP + "try:\n    train(1000000)\nexcept Exception:\n    print('never')\nfinally:\n    print('cleaned up')\n"
    )
    ran = run_tracer(tmp_path, program, settings=(*SHORT, "window.stop_after=true"))

    assert ran.status == 0
    assert ran.stdout == "cleaned up\n"
    assert ran.manifest["complete"]


def test_stop_after_ends_a_program_that_does_not_step(tmp_path: Path):
    program = "import torch\nprint('begun', flush=True)\nwhile True:\n    torch.ones(8) + 1\n"
    ran = run_tracer(tmp_path, program, settings=("window.skip=0", "window.seconds=0.5", "window.stop_after=true"))

    assert ran.status == 0
    assert ran.stdout == "begun\n"
    assert ran.manifest["complete"]


def test_windows_repeat_each_in_a_folder_of_its_own(tmp_path: Path):
    ran = run_tracer(tmp_path, LOOP + "train(16)", settings=(*SHORT, "window.every=6", "record.samples=false"))

    assert sorted(path.name.rpartition("-")[2] for path in ran.folder.iterdir())[-1] == "w3"
    firsts = [manifest["window"]["first_step"] for manifest in ran.manifests if manifest["complete"]]
    assert sorted(firsts) == [4, 10]


def test_a_window_on_demand_opens_at_a_signal(tmp_path: Path):
    script = tmp_path / "program.py"
    script.write_text(
        LOOP + "train(5)\nprint('ready', flush=True)\nfor _ in range(200):\n    train(1); time.sleep(0.02)\n"
    )
    words = [sys.executable, "-m", "tracer", "run", f"output.folder={tmp_path / 'traces'}", "output.formats=[]"]
    words += ["window.signal=SIGUSR2", "window.warmup=1", "window.steps=3", "record.samples=false", "--"]
    with subprocess.Popen(
        [*words, "python", str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        time.sleep(0.5)
        running.send_signal(signal.SIGUSR2)
        out, err = running.communicate(timeout=60)

    ran = Ran(running.returncode, out, err, tmp_path / "traces")
    assert ran.status == 0
    assert ran.names.count("aten::linear") == 3
    assert ran.manifest["complete"]


def test_progress_is_shown_on_a_terminal_alone(tmp_path: Path):
    script = tmp_path / "program.py"
    script.write_text(LOOP + "train(12)")
    words = [sys.executable, "-m", "tracer", "run", f"output.folder={tmp_path}", "output.formats=[]", *SHORT]
    ours, theirs = pty.openpty()
    subprocess.run(
        [*words, "--", "python", str(script)], stderr=theirs, check=True, env={**ENVIRONMENT, "TERM": "xterm"}
    )
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)

    assert "waiting for step 4" in shown
    assert "recording" in shown
    assert "writing" in shown


def test_the_quickstart_ends_in_an_audit_and_a_trace(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tracer", "run", str(CONFIGS / "quickstart.yaml"), f"output.folder={tmp_path}"],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )

    (folder,) = tmp_path.iterdir()
    audit = json.loads((folder / "audit.json").read_text())
    assert len(audit["steps"]) == 10
    assert audit["pace"]["untraced_count"] >= 9  # the later half of those before the window
    # Without a GPU, recording may slow such small steps too much for them to be compared: then that is said.
    assert audit["pace"]["ratio"] or any("own pace is not known" in limit for limit in audit["limits"])
    assert (folder / "trace.pftrace").stat().st_size > 1000
    assert "no async gap to see" in done.stdout
    assert str(folder) in done.stdout
    assert done.stderr == ""


def test_secrets_do_not_reach_the_manifest():
    cleaned = clean_environment(
        {
            "HF_TOKEN": "hf_abcdefghijklmnopqrstuvwxyz",
            "AWS_SECRET_ACCESS_KEY": "x",
            "DATABASE_URL": "postgres://me:pw@host/db",
            "WANDB_API_KEY": "x",
            "OTHER": "ghp_0123456789abcdefghijklmnop",
            "HOME": "/root",
            "PWD": "/here",
        }
    )
    arguments = clean_arguments(["train.py", "--api-key", "abc", "--token=abc", "--lr", "0.1", "--tokenizer", "bpe"])

    text = json.dumps(cleaned) + json.dumps(arguments)
    assert not any(secret in text for secret in ("abcdef", "ghp_", "me:pw", '"x"', '"abc"', "=abc"))
    assert cleaned["HOME"] == "/root"
    assert cleaned["PWD"] == "/here"
    assert arguments[4:] == ["--lr", "0.1", "--tokenizer", "bpe"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is nothing to run"),
        (["nowhere.yaml"], "there is no config nowhere.yaml"),
        (["--"], "there is nothing to run"),
        (["a.yaml", "--", "python"], "two programs"),
        (["--", "no-such-program-anywhere"], "there is no program 'no-such-program-anywhere'"),
        (["output.formats=[pdf]", "--", "python", "-c", "1"], "there is no format 'pdf'"),
        (["run.cwd=/no/where", "--", "python", "-c", "1"], "there is no folder /no/where"),
        (["--", "./not-executable"], "./not-executable cannot be run"),
        (["--", "python", "a\0b"], "cannot be run"),
        (["run.env={a=b: 1}", "--", "python", "-c", "1"], "cannot be run"),
        (["quote.yaml"], "run.command cannot be taken apart"),
        (["window.step_from='mark:'", "--", "python", "-c", "1"], "window.step_from is 'mark:'"),
        (["output.folder=/proc/nowhere", "--", "python", "-c", "1"], "cannot be written to /proc/nowhere"),
    ],
)
def test_bad_input_is_named_and_mended(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "not-executable").touch()
    (tmp_path / "quote.yaml").write_text("run:\n  command: torchrun 'train.py\n")

    assert main(["run", *words]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("traces/*"))


def test_a_script_that_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    config = tmp_path / "c.yaml"
    config.write_text("run:\n  script: nothing.py\n")

    assert main(["run", str(config)]) == 2
    assert "there is no script nothing.py" in capsys.readouterr().err


# As a library.


def test_a_block_is_recorded_by_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import torch

    with tracer.record("mine", steps=3, skip=2, folder=tmp_path, samples=False) as recording:
        for _ in range(9):
            torch.ones(8) + 1
            recording.step()

    ran = Ran(0, "", "", tmp_path)
    assert ran.manifest["complete"]
    assert ran.manifest["steps_from"] == "tracer"
    assert ran.names.count("aten::add") == 3
    assert recording.folder is not None
    assert (recording.folder / "audit.json").exists()
    assert "no async gap to see" in capsys.readouterr().out


def test_a_block_inside_a_recorded_program_leaves_the_recording_to_it(tmp_path: Path):
    program = LOOP + "import tracer\nwith tracer.record('inner', steps=2):\n    train(12)\n"
    ran = run_tracer(tmp_path, program)

    assert ran.status == 0
    assert ran.manifest["complete"]
    assert not (tmp_path / "inner").exists()
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["traces"]


def test_a_whole_block_is_recorded(tmp_path: Path):
    import torch

    with tracer.record("mine", folder=tmp_path, formats=(), samples=False):
        for _ in range(5):
            torch.ones(8) + 1
            tracer.step()

    ran = Ran(0, "", "", tmp_path)
    assert ran.manifest["complete"]
    assert ran.manifest["steps_from"] == "tracer"
    assert ran.names.count("aten::add") == 5
    tracer.step()  # does nothing any more


@pytest.mark.parametrize("steps", [3, None])
def test_steps_that_an_optimizer_tells_inside_a_block_are_said_to_be_its(tmp_path: Path, steps):
    import torch

    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with tracer.record("mine", steps=steps, folder=tmp_path, formats=(), samples=False):
        for _ in range(7):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()

    assert Ran(0, "", "", tmp_path).manifest["steps_from"] == "optimizer"


def test_an_error_leaves_the_block_as_it_was_raised(tmp_path: Path):
    with pytest.raises(KeyError, match="mine"), tracer.record("mine", folder=tmp_path, formats=(), samples=False):
        {}["mine"]

    ran = Ran(0, "", "", tmp_path)
    assert not ran.manifest["complete"]
    assert "KeyError was raised" in ran.manifest["why"]


def test_a_wrong_keyword_is_named():
    with pytest.raises(UsageError, match="unknown key 'stack'") as caught:
        tracer.record("mine", stack="full")

    assert "stacks" in caught.value.fix


@pytest.mark.parametrize("warmup", [0, 2])
def test_what_opening_and_closing_take_is_in_no_step_and_outside_the_window(tmp_path: Path, warmup: int):
    slow = """
from tracer.recording.capture import Capture
from tracer.recording.session import Session
def slowed(method):
    def call(*args, **keywords):
        time.sleep(0.3)
        return method(*args, **keywords)
    return call
for owner, name in ((Capture, "warm"), (Session, "save")):
    setattr(owner, name, slowed(getattr(owner, name)))
"""
    settings = ("window.skip=3", f"window.warmup={warmup}", "window.steps=4", "record.samples=false")
    ran = run_tracer(tmp_path, LOOP + slow + "train(15)", settings=settings)

    steps = load(ran.ranks[0].parent).steps
    assert steps.number[steps.traced].tolist() == [3 + warmup + n for n in range(4)]
    assert max(steps.dur_ns) < 0.25e9
    window = ran.manifest["window"]
    assert window["end_mono_ns"] - window["start_mono_ns"] < 0.25e9
    opened = [row[1] for row in ran.steps() if row[4]]
    assert window["start_mono_ns"] <= opened[0] < opened[-1] <= window["end_mono_ns"]
