"""Locating on programs that die as CUDA programs do: they leave a ring, print, and end; no GPU needed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tracer.commands import main
from tracer.recording.locate import Options, conclude, locate_program
from tracer.recording.rerun import BLOCKING
from tracer.reports._located import render

ROOT = Path(__file__).resolve().parents[1]

# A program with a ring of its own: `launch(line)` marks and queues, `die()` is the GPU finding the fault.
PRELUDE = """\
import json, os, sys, time
from pathlib import Path
from tracer.recording.marks import Marks
from tests.fake_gpu import FakeGpu

settings = json.loads(os.environ["TRACER_LOCATE"])
blocking = os.environ.get("CUDA_LAUNCH_BLOCKING") == "1"
rank = os.environ.get("RANK", "")
gpu = FakeGpu()
marks = Marks(Path(settings["folder"]) / f"{os.getpid()}.ring", lambda name: name == __file__, gpu=gpu)
marks.ring.event("process", rank, sys.argv, sys.version)
code = compile("pass", __file__, "exec")
ASSERTION = ("/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1284: indexSelectSmallIndex: block: [0,0,0], "
             "thread: [{},0,0] Assertion `srcIndex < srcSelectDimSize` failed.")

def launch(line, fault=0):
    marks.on_line(code, line)
    gpu.launch(fault)
    if blocking and fault:
        fail(fault)

def fail(fault):
    gpu.run(0)
    for thread in range(128):
        print(ASSERTION.format(thread), file=sys.stderr)
    error = RuntimeError("CUDA error: device-side assert triggered")
    try:
        raise error
    except RuntimeError:
        marks.errors.note(error)
    raise error
"""


def test_without_words_it_says_how_to_call_locate(capsys):
    assert main(["locate"]) == 2
    assert "python -m tracer locate -- python train.py" in capsys.readouterr().err


def test_a_machine_without_a_gpu_is_said_to_have_none(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("tracer.recording.begin.may_have_gpu", lambda: False)
    (tmp_path / "p.py").write_text("print('ran')\n")

    assert main(["locate", str(tmp_path / "p.py")]) == 0
    assert "Note: this machine has no GPU" in capfd.readouterr().out


def run_fake(tmp_path: Path, body: str, *, limit_s: float = 30.0, before: str = "", env=None, **options):
    script = tmp_path / "train.py"
    script.write_text(before + PRELUDE + textwrap.dedent(body))
    path = os.pathsep.join([str(ROOT), *sys.path])
    return locate_program(
        [sys.executable, str(script)],
        {**os.environ, "PYTHONPATH": path, **(env or {})},
        options=Options(limit_s=limit_s, **options),
    )


def line_of(text: str, body: str) -> int:
    lines = (PRELUDE + textwrap.dedent(body)).splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_marks_that_broke_off_before_the_failure_name_no_line(tmp_path):
    body = """
    launch(900)
    gpu.run(0)
    marks.give_up(ValueError("a fault of ours"))
    launch(901, fault=710)
    fail(710)
    """

    found = run_fake(tmp_path, body, rerun=False)

    assert found.first.bracket == ()
    assert found.cause_from == "traceback"
    assert found.confidence == "low"
    assert any("broke off" in note for note in found.notes)


def test_marks_that_broke_off_after_it_still_do(tmp_path):
    body = """
    launch(900)
    launch(901, fault=710)
    launch(902)
    marks.give_up(ValueError("a fault of ours"))
    fail(710)
    """

    found = run_fake(tmp_path, body, rerun=False)

    assert [place.line for place in found.first.bracket] == [901]


def test_a_printed_traceback_through_generated_code_names_the_users_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        """import sys
sys.exit('''Traceback (most recent call last):
  File "%s", line 1, in <module>
  File "/env/lib/python3.12/site-packages/torch/_inductor/runtime/triton_heuristics.py", line 1500, in run
  File "<string>", line 5, in launcher
RuntimeError: CUDA driver error: device-side assert triggered''' % __file__)
"""
    )

    found = locate_program([sys.executable, str(script)], os.environ, options=Options(rerun=False))

    assert found.kind == "async.assert"
    assert (found.cause.file, found.cause.line) == (str(script), 1)


TWO_RUNS = """
for step in range(5):
    launch(900)
    launch(line_of_fault, fault=710 if step == 4 else 0)
    launch(902)
fail(710)
"""


def test_both_runs_agree_on_the_line_the_time_round_and_the_assertion(tmp_path, capfd):
    body = TWO_RUNS.replace("line_of_fault", "901")

    found = run_fake(tmp_path, body)

    assert found.kind == "async.assert"
    assert (found.first.bracket[0].line, len(found.first.bracket)) == (901, 1)
    assert found.iteration == 4
    assert found.first.marks == 1
    assert found.second.reproduced
    assert [place.function for place in found.callers] == ["launch", "<module>"]
    assert found.status == 1
    assert found.first.assertions == (
        "indexSelectSmallIndex at Indexing.cu:1284: srcIndex < srcSelectDimSize "
        "(block 0,0,0, thread 0,0,0, 128 of them)",
    )
    assert capfd.readouterr().err.count("srcSelectDimSize") == 1


def test_the_line_that_was_blamed_is_given_beside_the_cause(tmp_path):
    body = "launch(901, fault=710)\nlaunch(902)\nfail(710)\n"

    found = run_fake(tmp_path, body, rerun=False)

    assert (found.cause.line, found.cause_from, found.confidence) == (901, "marks", "high")
    assert found.first.reported.line == line_of("raise error", body)
    assert found.callers == ()  # those of the traceback are not those of the cause
    assert found.first.in_flight[0].place.line == 902


def test_an_error_that_does_not_come_back_is_called_so_and_named_without_confidence(tmp_path):
    found = run_fake(tmp_path, "if blocking:\n    sys.exit(0)\nlaunch(901, fault=710)\nlaunch(902)\nfail(710)\n")

    assert found.kind == "async.unlocalised"
    assert found.cause.line == 901
    assert found.confidence == "low"
    assert any("not reproduced with launches blocking" in note for note in found.notes)
    assert "race" in " ".join(found.advice)
    assert "not reproduced" in render(found)


HANG = """\
import os, subprocess, sys, time
if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(__file__ + ".pid", "w") as file:
        file.write(str(child.pid))
    time.sleep(600)
"""


def test_a_second_run_that_hangs_is_ended_at_the_limit_with_all_its_children(tmp_path):
    began = time.monotonic()

    found = run_fake(tmp_path, "launch(901, fault=710)\nfail(710)\n", limit_s=4.0, before=HANG)

    assert time.monotonic() - began < 60
    assert found.second.status is None
    assert any("time limit" in note for note in found.notes)
    assert (found.kind, found.cause.line, found.confidence) == ("async.assert", 901, "high")
    pid = int((tmp_path / "train.py.pid").read_text())
    until = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < until, "the child is still alive"
        time.sleep(0.05)


def test_a_program_without_an_error_runs_once_and_keeps_its_status(tmp_path):
    found = run_fake(tmp_path, "launch(901)\nPath(__file__).with_name('runs').open('a').write('x')\nsys.exit(3)\n")

    assert (found.kind, found.cause, found.second, found.status) == ("", None, None, 3)
    assert (tmp_path / "runs").read_text() == "x"


def test_a_swallowed_error_is_the_cause_and_later_failures_are_consequences(tmp_path):
    body = """
    launch(901, fault=710)
    try:
        fail(710)
    except RuntimeError:
        pass
    def innocent():
        raise RuntimeError("CUDA error: device-side assert triggered")
    try:
        innocent()
    except RuntimeError as error:
        marks.errors.note(error)
        raise
    """

    found = run_fake(tmp_path, body, rerun=False)

    assert found.cause.line == 901
    assert [place.function for place in found.first.later] == ["innocent"]
    assert any("failed as a consequence" in note for note in found.notes)


@pytest.mark.parametrize(("end", "status"), [("os._exit(7)", 7), ("os.abort()", 134)])
def test_a_death_without_a_word_loses_nothing(tmp_path, end, status):
    body = f"""
    launch(901)
    launch(902, fault=710)
    launch(903)
    gpu.run(0)
    print(ASSERTION.format(0), file=sys.stderr, flush=True)
    {end}
    """

    found = run_fake(tmp_path, body, rerun=False)

    assert found.status == status
    assert found.cause.line == 902


def test_of_two_ranks_the_one_that_failed_first_is_named(tmp_path):
    body = """
    import subprocess
    if not rank:
        ranks = [subprocess.Popen([sys.executable, __file__], env={**os.environ, "RANK": str(n)}) for n in range(2)]
        sys.exit(max(process.wait() for process in ranks))
    launch(910 + int(rank), fault=710)
    if rank == "0":
        time.sleep(1)
    fail(710)
    """

    found = run_fake(tmp_path, body, rerun=False)

    assert found.cause.line == 911
    assert found.first.process.startswith("rank 1")
    assert any("rank 0" in note and "later" in note for note in found.notes)


def test_a_program_that_blocks_already_is_told_so(tmp_path):
    found = run_fake(
        tmp_path, "launch(901, fault=0 if not blocking else 710)\nfail(710)\n", env={BLOCKING: "1"}, rerun=False
    )

    assert any("never for production" in note for note in found.notes)
    assert not found.first.blocking


def test_a_program_that_cannot_be_started_is_an_error_of_ours(capsys):
    assert main(["locate", "--", "/no/such/program"]) == 4
    assert "could not be started" in capsys.readouterr().err


def test_too_many_resources_need_no_second_run(tmp_path):
    body = """
    try:
        raise RuntimeError("CUDA error: too many resources requested for launch")
    except RuntimeError as error:
        marks.errors.note(error)
        raise
    """

    found = run_fake(tmp_path, body)

    assert (found.kind, found.second) == ("launch.resources", None)
    assert found.cause.line == line_of('raise RuntimeError("CUDA error: too many', body)


def test_the_command_prints_json_with_the_program_s_own_status(tmp_path, capsys, monkeypatch):
    script = tmp_path / "train.py"
    script.write_text(PRELUDE + "launch(901, fault=710)\nfail(710)\n")
    config = tmp_path / "config.yaml"
    config.write_text("run:\n  script: train.py\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *sys.path]))

    status = main(["locate", "--no-rerun", "--format", "json", str(config)])
    answer = json.loads(capsys.readouterr().out)

    assert status == 1
    assert answer["kind"] == "async.assert"
    assert answer["cause"]["line"] == 901
    assert answer["status"] == 1


def test_where_the_runs_differ_the_blocking_one_is_right(tmp_path):
    first = run_fake(tmp_path, "launch(901, fault=710)\nfail(710)\n", rerun=False).first
    second = run_fake(tmp_path, "launch(905, fault=710)\nfail(710)\n", rerun=False).first

    found = conclude("train.py", first, second)

    assert found.cause == second.reported
    assert found.cause_from == "blocking run"
    assert any("the marks of the first run pointed at" in note for note in found.notes)


def test_json_on_stdout_is_not_mixed_with_what_the_program_prints(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(PRELUDE + "print('hello from the program', flush=True)\nlaunch(901, fault=710)\nfail(710)\n")

    done = subprocess.run(
        [sys.executable, "-m", "tracer", "locate", str(script), "--no-rerun", "--format", "json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )

    assert json.loads(done.stdout)["cause"]["line"] == 901
    assert "hello from the program" in done.stderr


def test_what_the_marks_cannot_see_is_said(tmp_path):
    source = tmp_path / "model.py"
    source.write_text("loss.backward()\ngraph.replay()\n")
    body = f"""
    code = compile("pass", {str(source)!r}, "exec")
    launch(LINE, fault=710)
    fail(710)
    """

    backward = run_fake(tmp_path, body.replace("LINE", "1"), rerun=False)
    replay = run_fake(tmp_path, body.replace("LINE", "2"), rerun=False)

    assert any("autograd launched it" in note for note in backward.notes)
    assert any("inside a CUDA graph" in note for note in replay.notes)


def test_a_program_on_the_cpu_runs_as_ever(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys, torch\nprint(torch.ones(3).sum().item(), sys.argv[1:])\nsys.exit(5)\n")

    done = subprocess.run(
        [sys.executable, "-m", "tracer", "locate", "--", sys.executable, str(script), "--epochs", "3"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 5
    said = done.stdout.splitlines()
    assert said[:2] == ["3.0 ['--epochs', '3']", "No CUDA error came up (status 5)."]
    assert done.stderr == ""


def _locating(tmp_path, program, **popen):
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    words = [sys.executable, "-m", "tracer", "locate", "--", sys.executable, "program.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=tmp_path, env=environment, **popen)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGKILL])
def test_a_signal_for_us_is_for_the_program_which_is_never_left_behind(tmp_path, sign):
    program = """
        import json, os, time
        print(os.getpid(), json.loads(os.environ["TRACER_LOCATE"])["folder"], flush=True)
        time.sleep(60)
    """
    tracer = _locating(tmp_path, program, stdout=subprocess.PIPE)
    assert tracer.stdout is not None
    pid, folder = tracer.stdout.readline().decode().split()

    tracer.send_signal(sign)
    tracer.communicate(timeout=30)

    until = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
    if sign == signal.SIGKILL:
        shutil.rmtree(folder)  # nobody is left to do it
    else:
        assert tracer.returncode == 128 + sign
        assert not Path(folder).exists()


def test_a_question_on_stderr_is_seen_before_it_is_answered(tmp_path):
    program = """
        import sys
        sys.stderr.write("sure? ")
        sys.stderr.flush()
        sys.exit("ended by " + input())
    """
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    tracer = _locating(tmp_path, program, **streams)
    assert tracer.stderr is not None

    asked = os.read(tracer.stderr.fileno(), 100)
    _, rest = tracer.communicate(b"yes\n", timeout=30)

    assert asked == b"sure? "
    assert rest == b"ended by yes\n"
