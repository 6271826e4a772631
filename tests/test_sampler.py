"""The samplers, on real processes: py-spy beside one, refused by one, and the one that samples from inside."""

import json
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from tests.shared import CASES
from tracer import config
from tracer.building import TraceBuilder
from tracer.chunks import read_chunks
from tracer.readers import pyspy
from tracer.recording import sampler
from tracer.recording.clockmarks import Recorder, _name_ptracer
from tracer.recording.inprocess import InProcessSampler
from tracer.recording.session import Session

# Alternates between two functions and logs when it was where, then lets the recorder end.
PROGRAM = """
    import json, sys, time
    from pathlib import Path
    from tracer import config
    from tracer.recording.clockmarks import Recorder, _name_ptracer
    from tracer.recording.session import Session

    folder, seconds = Path(sys.argv[1]), float(sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    session = Session(folder, config.Record())
    recorder = Recorder(session)
    recorder.arm()
    session.start()
    truth = []

    def first():
        time.sleep(0.013)

    def second():
        until = time.perf_counter() + 0.017
        while time.perf_counter() < until:
            pass

    recorder.open()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for function in (first, second):
            start = time.monotonic_ns()
            function()
            truth.append([function.__name__, start, time.monotonic_ns()])
    session.manifest["recorders"]["samples"] = recorder.close()
    print("closed", flush=True)
    sys.stdin.readline()
    recorder.disarm()
    session.manifest["truth"] = truth
    session.end()
"""


def record(folder, seconds):
    """Run the program with py-spy beside it, as `tracer run` does."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder), str(seconds)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout.readline() == "ready\n"
        why = sampler.start(program.pid, folder, config.Record())
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "closed\n"
        sampler.stop()
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.wait(30) == 0
    return why, json.loads((folder / "manifest.json").read_text())


def test_samples_of_a_real_program_fall_where_it_says_it_was(tmp_path):
    why, manifest = record(tmp_path, 5.0)
    beacons, _ = read_chunks(tmp_path / "beacons.chunks")
    builder = TraceBuilder()

    pyspy.add_samples(
        tmp_path / "samples.json",
        builder,
        rank=0,
        pid=1,
        beacons=[(name, entry, end) for _, name, entry, end in beacons],
    )
    trace = builder.build()

    assert why == ""
    assert manifest["py_spy"] == "samples.json"
    assert manifest["recorders"]["samples"]["saw"] > 100
    assert trace.losses == ()
    error = int(trace.meta["recorder.samples.clock_error_ns"])
    main = manifest["threads"][0]["native_id"]
    right = wrong = 0
    for time_ns, frame, track in zip(trace.samples.time_ns, trace.samples.frame, trace.samples.track, strict=True):
        names = set()
        while frame >= 0:
            names.add(trace.names[trace.frames.function[frame]])
            frame = trace.frames.parent[frame]
        assert not any(name.startswith(pyspy.BEACON) for name in names)
        for function in names & {"first", "second"}:
            assert trace.tracks[track].lane == main
            allowed = error + 200_000
            fits = any(
                name == function and start - allowed <= time_ns <= end + allowed
                for name, start, end in manifest["truth"]
            )
            right, wrong = right + fits, wrong + (not fits)
    assert error < 1_000_000
    assert right > 200
    assert wrong <= 0.03 * right


def fake_py_spy(folder, text):
    path = folder / "py-spy"
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def test_ps01_a_refused_sampler_names_the_capability_and_the_program_samples_itself(tmp_path, monkeypatch):
    text = "".join(f"{line}\n" for line in (CASES / "inputs" / "PS01.py").read_text().splitlines())
    monkeypatch.setenv("PATH", fake_py_spy(tmp_path, text))
    folder = tmp_path / "rank0"
    folder.mkdir()

    why, manifest = record(folder, 0.5)

    assert "SYS_PTRACE" in why
    said = manifest["recorders"]["samples"]
    assert said["how"] == "in-process"
    assert said["saw"] > 10
    assert "SYS_PTRACE" in said["why"]
    assert sum("SYS_PTRACE" in note for note in manifest["notes"]) == 1
    assert manifest["py_spy"] is None if "py_spy" in manifest else True
    rows, _ = read_chunks(folder / "samples.chunks")
    assert {row[5] for row in rows if row[0] == "frame"} >= {"first", "second"}


def test_a_process_that_may_not_be_looked_into_is_refused_for_real(tmp_path):
    """Another user asks, of a process that is not dumpable."""
    if os.geteuid() != 0:
        pytest.fail("this test changes its user, so it must be run as root")
    tmp_path.chmod(0o777)
    py_spy = tmp_path / "py-spy"
    shutil.copy(sampler.find_py_spy(), py_spy)
    for folder in tmp_path.parents:
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    code = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        program.stdout.readline()
        start = textwrap.dedent(f"""
            import os, sys
            sys.path[:0] = {sys.path!r}
            from pathlib import Path
            from tracer import config
            from tracer.recording import sampler
            os.environ["PATH"] = {str(tmp_path)!r} + ":/usr/bin:/bin"
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
            print(sampler.start({program.pid}, Path({str(tmp_path)!r}), config.Record()))
        """)
        done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=60, cwd="/")
        program.kill()

    assert "SYS_PTRACE" in done.stdout, done.stderr
    assert json.loads((tmp_path / sampler.STATE).read_text())["on"] is False


def test_without_py_spy_the_program_is_sampled_from_inside(tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "find_py_spy", lambda: None)

    assert "pip install py-spy" in sampler.start(os.getpid(), tmp_path, config.Record())


def test_a_sampler_that_hangs_is_ended_and_said(tmp_path, monkeypatch):
    text = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    text += "print('Press Control-C', flush=True)\ntime.sleep(60)\n"
    monkeypatch.setenv("PATH", fake_py_spy(tmp_path, text))
    monkeypatch.setattr(sampler, "_WRITE_S", 0.3)

    assert sampler.start(os.getpid(), tmp_path, config.Record()) == ""
    sampler.stop()

    assert "killed" in json.loads((tmp_path / sampler.STATE).read_text())["why"]


def test_a_sampler_that_dies_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fake_py_spy(tmp_path, "print('Press Control-C', flush=True)\nraise SystemExit(3)\n"))

    sampler.start(os.getpid(), tmp_path, config.Record())
    time.sleep(0.5)
    sampler.stop()

    why = json.loads((tmp_path / sampler.STATE).read_text())["why"]
    # It may be dead before it is looked at.
    assert any(words in why for words in ("before the window did", "without samples", "stopped at once"))


def steps_in(program, *, sampled, folder):
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as running:
        for _ in range(20 if sampled else 0):  # at first there may be no Python in it yet
            if sampler.start(running.pid, folder, config.Record()) == "":
                break
            time.sleep(0.1)
        steps = int(running.stdout.readline().split()[1])
        sampler.stop()
    return steps


def test_ps02_many_idle_threads_are_not_slowed_down(tmp_path):
    program = CASES / "inputs" / "PS02.py"
    ratios = []
    for _ in range(4):
        plain = steps_in(program, sampled=False, folder=tmp_path)
        ratios.append(steps_in(program, sampled=True, folder=tmp_path) / plain)
        if ratios[-1] > 0.9:
            break

    assert max(ratios) > 0.9


def test_ps04_a_program_that_ends_at_once_gives_few_samples_and_no_error(tmp_path):
    with subprocess.Popen([sys.executable, str(CASES / "inputs" / "PS04.py")], stdout=subprocess.DEVNULL) as running:
        running.wait(60)
        why = sampler.start(running.pid, tmp_path, config.Record())
        sampler.stop()

    assert why.startswith("py-spy stopped at once")


@pytest.mark.parametrize(("scope", "named"), [("0", False), ("1", True), ("2", False)])
def test_under_yama_the_parent_is_named_as_the_one_who_may_look(tmp_path, scope, named):
    (tmp_path / "run.json").write_text(json.dumps({"parent": os.getppid()}))
    (tmp_path / "scope").write_text(f"{scope}\n")

    assert _name_ptracer(tmp_path / "run.json", tmp_path / "scope") is named
    assert _name_ptracer(tmp_path / "nothing", tmp_path / "scope") is False


class Sink:
    def __init__(self):
        self.rows = []
        self.add = self.rows.append

    def flush(self):
        pass


def waits_here(event):
    event.wait()


def test_the_inner_sampler_knows_each_thread_and_line(tmp_path):
    event, sink = threading.Event(), Sink()
    thread = threading.Thread(target=waits_here, args=(event,))
    thread.start()
    inside = InProcessSampler(sink, 100)
    until = time.monotonic() + 20
    while inside.saw < 40 and time.monotonic() < until:
        time.sleep(0.05)
    inside.stop()
    event.set()
    thread.join()

    frames = {row[1]: row for row in sink.rows if row[0] == "frame"}
    samples = [row for row in sink.rows if row[0] == "sample" and row[2] == thread.native_id]
    assert len(samples) >= 10
    for _, _, _, leaf, weight in samples:
        stack = []
        while leaf >= 0:
            stack.append((frames[leaf][5], frames[leaf][4]))
            leaf = frames[leaf][2]
        assert ("waits_here", waits_here.__code__.co_firstlineno + 1) in stack
        assert weight > 5_000_000


def test_the_inner_sampler_takes_no_more_than_a_hundredth():
    gate, sink = threading.Event(), Sink()
    threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(200)]
    for thread in threads:
        thread.start()
    inside = InProcessSampler(sink, 1000)
    time.sleep(1.0)
    inside.stop()
    gate.set()

    said = inside.said()
    assert "samples a second" in said["note"]
    assert said["saw"] < 201 * 300


def test_switched_off_means_off(tmp_path):
    session = Session(tmp_path, config.Record(samples=False))
    recorder = Recorder(session)

    recorder.arm()
    recorder.open()

    assert recorder.close() == {"on": False, "saw": 0, "dropped": 0, "why": "switched off"}
    assert session.manifest.get("py_spy") is None
