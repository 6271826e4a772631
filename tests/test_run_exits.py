"""However a recorded program ends, its status and words are its own, and what was recorded is kept."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.running import ENVIRONMENT, LOOP, SHORT, Ran, run_tracer
from tracer import recording
from tracer.errors import TraceError
from tracer.readers import load

CUT_SHORT = "the window was cut short after 3 of 4 steps"
IN_THE_WINDOW = "train(7)\n"  # 3 skipped, 1 to warm up, 3 of 4 in the window


def plain(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(tmp_path / "program.py"), *arguments]
    return subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT, check=False)


@pytest.mark.parametrize(
    ("way", "status", "why"),
    [
        ("raise ValueError('boom')", 1, CUT_SHORT),
        ("sys.exit(7)", 7, CUT_SHORT),
        ("os._exit(9)", 9, "it left by os._exit"),
        ("os.kill(os.getpid(), 15)", 143, "it got SIGTERM"),
        ("os.kill(os.getpid(), 2)", 130, CUT_SHORT),
    ],
)
def test_a_program_that_ends_inside_the_window_leaves_a_recording(tmp_path: Path, way: str, status: int, why: str):
    ran = run_tracer(tmp_path, LOOP + IN_THE_WINDOW + way)

    alone = plain(tmp_path)
    assert ran.status == status
    assert ran.stderr == alone.stderr
    assert ran.stdout == alone.stdout
    assert why in ran.manifest["why"]
    assert not ran.manifest["complete"]
    assert ran.names.count("aten::linear") == 3
    assert ran.manifest["program"]["exit_status"] == status


def test_a_killed_program_leaves_what_was_flushed(tmp_path: Path):
    ran = run_tracer(tmp_path, LOOP + IN_THE_WINDOW + "time.sleep(2.5)\nos.kill(os.getpid(), 9)")

    assert ran.status == 137
    assert not ran.manifest["complete"]
    assert "too suddenly" in ran.manifest["why"]
    assert not (ran.ranks[0] / "kineto.json.gz").exists()
    assert [row[2] for row in ran.steps()] == [0, 1, 2, 3, -1, 4, 5, 6, 7]


def test_a_window_that_never_opens_says_so_and_changes_no_status(tmp_path: Path):
    ran = run_tracer(tmp_path, LOOP + "train(2)")

    assert ran.status == 0
    assert "the window never opened: it begins at step 4, and the program ended at step 2" in ran.stderr
    assert not ran.manifest["complete"]


@pytest.mark.parametrize(
    ("program", "settings", "why"),
    [
        (
            LOOP + "train(5)",
            ("window.seconds=5", "window.skip=60"),
            "it begins after 60 s, and the program ended after",
        ),
        (LOOP + "train(5)", ("window.step_from=mark:foo",), "a mark named 'foo' never came"),
        (LOOP + "train(5)", ("window.step_from=tracer",), "a call of tracer.step() never came"),
        ("import time; time.sleep(60)", ("run.timeout=3",), "the program was ended after run.timeout, before"),
    ],
)
def test_a_run_of_nothing_says_what_happened_and_its_folder_says_it_again(tmp_path: Path, program, settings, why):
    ran = run_tracer(tmp_path, program, settings=settings)

    assert f"nothing was recorded: {why}" in ran.stderr.replace("the window never opened: ", "")
    (run,) = ran.folder.iterdir()
    with pytest.raises(TraceError, match="recorded nothing") as caught:
        load(run)
    assert why in str(caught.value)


def test_a_window_of_seconds_opens_at_once_if_nothing_else_is_said(tmp_path: Path):
    ran = run_tracer(tmp_path, LOOP + "train(5)", settings=("window.seconds=60",))

    assert "nothing was recorded" not in ran.stderr
    assert ran.names.count("aten::linear") >= 4


def test_a_program_that_takes_too_long_is_ended(tmp_path: Path):
    started = time.monotonic()
    ran = run_tracer(
        tmp_path,
        LOOP + IN_THE_WINDOW + "time.sleep(120)",
        settings=("run.timeout=20", "window.skip=3", "window.warmup=1"),
    )

    assert time.monotonic() - started < 80
    assert ran.status == 143
    assert "run.timeout = 20 s" in ran.stderr
    assert "it got SIGTERM" in ran.manifest["why"]
    assert ran.names.count("aten::linear") == 3


def test_the_programs_children_end_with_it_when_it_is_killed(tmp_path: Path):
    ran = run_tracer(
        tmp_path,
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(300)\n",
        settings=("run.timeout=3",),
    )

    with pytest.raises(ProcessLookupError):
        os.kill(int(ran.stdout), 0)


def test_a_signal_to_the_tracer_reaches_the_program(tmp_path: Path):
    script = tmp_path / "program.py"
    script.write_text(LOOP + IN_THE_WINDOW + "print('ready', flush=True)\ntime.sleep(60)\n")
    words = [sys.executable, "-m", "tracer", "run", f"output.folder={tmp_path / 'traces'}", "output.formats=[]"]
    words += ["window.skip=3", "window.warmup=1", "--", "python", str(script)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as tracer:
        assert tracer.stdout is not None
        assert tracer.stdout.readline() == "ready\n"
        tracer.send_signal(signal.SIGTERM)
        out, err = tracer.communicate(timeout=30)

    ran = Ran(tracer.returncode, out, err, tmp_path / "traces")
    assert ran.status == 143
    assert "it got SIGTERM" in ran.manifest["why"]
    assert (ran.ranks[0] / "kineto.json.gz").exists()


def test_a_full_disk_ends_the_recording_and_not_the_program(tmp_path: Path):
    """A limit on the size of files stands for the full disk: writing fails in the same place."""
    program = LOOP + (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))\n"
        "train(12)\n"
        "print('done')\n"
    )

    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "done\n"
    assert ran.status == 4  # the program is well, the profiler's trace could not be written
    assert not (ran.ranks[0] / "kineto.json.gz").exists()
    assert not list(ran.ranks[0].glob(".kineto*"))
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    assert "could not be written" in ran.stderr


def test_sigterm_looks_untouched_to_the_program(tmp_path: Path):
    program = LOOP + (
        "import signal\n"
        "train(5)\n"
        "print(signal.getsignal(signal.SIGTERM))\n"
        "print(signal.signal(signal.SIGTERM, lambda *_: print('handled')))\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print(signal.signal(signal.SIGTERM, signal.SIG_DFL) is not signal.SIG_DFL)\n"
        "print(signal.getsignal(signal.SIGTERM))\n"
    )

    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "0\n0\nhandled\nTrue\n0\n"
    assert ran.status == 0


def test_a_second_ctrl_c_while_the_recording_is_written_says_nothing_of_us(tmp_path: Path):
    # The second one comes while the recorder's own handler keeps it waiting, in the middle of writing.
    twice = """
import atexit, signal
from tracer.recording.capture import Capture
close = Capture.close
def interrupted(self, *args):
    signal.raise_signal(signal.SIGINT)
    close(self, *args)
Capture.close = interrupted
atexit.register(print, "the program's own")
signal.raise_signal(signal.SIGINT)
"""
    ran = run_tracer(tmp_path, LOOP + IN_THE_WINDOW + twice)

    assert ran.status == 130
    assert ran.stderr.splitlines()[-1] == "KeyboardInterrupt"
    assert "Exception ignored" not in ran.stderr
    assert ran.stdout == "the program's own\n"
    assert ran.names.count("aten::linear") == 3


def _runs(pid: int) -> bool:
    """Whether a process is there and has not ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_a_program_whose_tracer_is_killed_is_ended_and_its_recording_kept(tmp_path: Path):
    program = LOOP + "train(6)\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    (tmp_path / "program.py").write_text(program)
    settings = [f"output.folder={tmp_path / 'traces'}", "window.skip=3", "window.warmup=1", "window.steps=4"]
    words = [sys.executable, "-m", "tracer", "run", *settings, "--", sys.executable, "program.py"]
    with subprocess.Popen(words, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as tracer:
        assert tracer.stdout is not None
        pid = int(tracer.stdout.readline())
        tracer.kill()
    ends = time.monotonic() + 30
    while _runs(pid) and time.monotonic() < ends:
        time.sleep(0.1)

    assert not _runs(pid)
    ran = Ran(0, "", "", tmp_path / "traces")
    assert "it got SIGTERM" in ran.manifest["why"]
    assert ran.names.count("aten::linear") == 2


@pytest.mark.parametrize("way", ["no such file", "import nothing_of_this_name", "raise SystemExit(5)"])
def test_a_program_that_fails_at_once_is_not_told_to_step(tmp_path: Path, way: str):
    command = ["python", "nowhere.py"] if way == "no such file" else None
    ran = run_tracer(tmp_path, way, command=command)

    assert ran.status in (1, 2, 5)
    ended = f"the program ended with status {ran.status}"
    said = f"there is no nowhere.py, and {ended}" if command else f"{ended} before it used CUDA or an optimizer"
    assert said in ran.stderr
    assert "tracer.step" not in ran.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_the_programs_to_see(tmp_path: Path, closed: str):
    looks = "open('seen', 'w').write(str([os.path.exists(f'/proc/self/fd/{n}') for n in range(3)]))"
    (tmp_path / "program.py").write_text(f"import os\n{looks}\n")
    tracer = f"{sys.executable} -m tracer run output.folder={tmp_path / 'traces'} -- "
    seen = []
    for start in ("", tracer):
        words = ["bash", "-c", f"{start}{sys.executable} program.py {closed}"]
        assert subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, check=False).returncode == 0
        seen.append((tmp_path / "seen").read_text())

    assert seen[0] == seen[1]


def test_a_recording_that_is_deleted_under_us_costs_the_recording_alone(tmp_path: Path):
    ran = run_tracer(
        tmp_path, LOOP + "import shutil\ntrain(5)\nshutil.rmtree('traces')\ntrain(5)\nprint('done')\nsys.exit(6)"
    )

    assert (ran.status, ran.stdout) == (6, "done\n")
    assert "Traceback" not in ran.stderr
    assert "the recording is not whole" in ran.stderr


@pytest.mark.parametrize("before", [2, 6, 12])  # steps before the fork: in front of the window, inside, behind
def test_a_forked_child_ends_as_it_would_alone(tmp_path: Path, before: int):
    forks = f"""
train({before})
child = os.fork()
if not child:
    print("child")
    sys.exit(5)
print(os.waitpid(child, 0)[1])
train(12)
"""
    ran = run_tracer(tmp_path, LOOP + forks, timeout=30)

    alone = plain(tmp_path)
    assert (ran.status, ran.stdout, ran.stderr) == (0, "child\n1280\n", alone.stderr)
    assert ran.manifest["complete"]


def test_a_program_that_closes_its_stdout_does_not_print_into_our_files(tmp_path: Path):
    ran = run_tracer(tmp_path, LOOP + "os.close(1)\ntrain(5)\nprint('lost', flush=True)")

    alone = plain(tmp_path)
    assert "Bad file descriptor" in alone.stderr
    assert (ran.status, ran.stderr) == (alone.returncode, alone.stderr)
    assert all(b"lost\n" not in path.read_bytes() for path in ran.ranks[0].glob("*.chunks"))


def test_a_program_that_closes_all_files_finds_nothing_of_ours_in_its_next_ones(tmp_path: Path):
    closes = """
train(5)
time.sleep(1.5)  # so that our files are open
os.closerange(3, 200)
mine = [open(f"mine{n}", "w") for n in range(60)]
train(8)
time.sleep(1.5)
print([file.write(str(n)) for n, file in enumerate(mine[:3])])
"""
    ran = run_tracer(tmp_path, LOOP + closes)

    assert (ran.status, ran.stdout) == (0, "[1, 1, 1]\n")
    assert {path.read_text() for path in tmp_path.glob("mine*")} == {"0", "1", "2", ""}
    assert ran.manifest["complete"]
    assert [row[2] for row in ran.steps() if row[2] >= 0][-1] == 13


def test_a_program_that_deletes_its_working_folder_is_recorded(tmp_path: Path):
    ran = run_tracer(tmp_path, LOOP + "os.mkdir('gone')\nos.chdir('gone')\nos.rmdir('../gone')\ntrain(12)")

    assert (ran.status, ran.stderr) == (0, "")
    assert ran.manifest["complete"]


def test_a_program_that_clears_its_environment_hears_nothing_of_the_profiler(tmp_path: Path):
    ran = run_tracer(tmp_path, LOOP + "os.environ.clear()\ntrain(12)\nprint(len(os.environ))")

    assert (ran.status, ran.stdout, ran.stderr) == (0, "0\n", "")
    assert ran.manifest["complete"]


def test_clocks_that_the_program_replaces_are_its_own_and_not_ours(tmp_path: Path):
    frozen = """
names = [name for name in dir(time) if name.endswith("_ns")]
for name in (*names, "time", "monotonic", "perf_counter", "sleep"):
    setattr(time, name, lambda *asked: "frozen")
train(6)
time.time = lambda: "in the window"
train(6)
print(time.time(), time.time_ns())
"""
    ran = run_tracer(tmp_path, LOOP + frozen)

    assert (ran.status, ran.stdout, ran.stderr) == (0, "in the window frozen\n", "")
    times = [row[1] for row in ran.steps()]
    assert len(set(times)) == len(times) > 10
    assert ran.manifest["complete"]


def test_a_clock_replaced_inside_the_window_stays_replaced(tmp_path: Path):
    ran = run_tracer(tmp_path, LOOP + "train(6)\ntime.time = lambda: 5\ntrain(6)\nprint(time.time())")

    assert (ran.status, ran.stdout) == (0, "5\n")


def test_names_that_are_no_text_cost_nothing(tmp_path: Path):
    odd = os.fsdecode(b"odd\xff.py")
    names = "import ctypes\nctypes.CDLL(None).prctl(15, b'half\\xc3')\n"  # what the system cut in a letter's middle
    (tmp_path / odd).write_text(LOOP + names + "train(12)\nprint(os.fsencode(sys.argv[1]))")
    ran = run_tracer(
        tmp_path,
        "",
        os.fsdecode(b"\xff"),
        command=[sys.executable, odd],
        formats="[json]",
        env={**ENVIRONMENT, "ODD": os.fsdecode(b"\xfe")},
    )

    assert (ran.status, ran.stdout, ran.stderr) == (0, "b'\\xff'\n", "")
    assert ran.manifest["complete"]


def test_a_folder_whose_name_is_no_text_is_refused_before_anything_runs(tmp_path: Path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    Path(folder).mkdir()
    ran = run_tracer(tmp_path, LOOP + "print('ran')", settings=("output.folder=traces",), cwd=folder)

    assert (ran.status, ran.stdout) == (2, "")
    assert "no UTF-8" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_nothing_of_ours_reads_or_writes_text_by_the_locale(tmp_path: Path):
    environment = {**ENVIRONMENT, "PYTHONWARNDEFAULTENCODING": "1"}
    ran = run_tracer(tmp_path, LOOP + "train(12)", env=environment)

    ours = str(Path(recording.__file__).parent)
    assert [line for line in ran.stderr.splitlines() if ours in line] == []


@pytest.mark.parametrize("command", ["run", "locate"])
@pytest.mark.parametrize("full", [True, False])
def test_where_nobody_takes_our_report_the_status_is_the_programs(tmp_path: Path, command: str, full: bool):
    (tmp_path / "program.py").write_text(LOOP + "train(12)\nsys.exit(3)")
    ours = [f"output.folder={tmp_path / 'traces'}", *SHORT] if command == "run" else []
    words = [sys.executable, "-m", "tracer", command, *ours, "--", sys.executable, "program.py"]
    reads, writes = os.pipe()
    os.close(reads)
    stdout = os.open("/dev/full", os.O_WRONLY) if full else writes
    done = subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, stdout=stdout, stderr=subprocess.PIPE, check=False)
    os.close(stdout)

    assert done.returncode == 3
    assert done.stderr.count(b"\n") == full  # of a full disk we speak; a reader who has gone knows
    assert b"Traceback" not in done.stderr


def test_a_disk_that_is_full_from_the_start_is_said_before_anything_runs(tmp_path: Path):
    ran = run_tracer(
        tmp_path,
        LOOP + "print('ran')",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
    )

    assert (ran.status, ran.stdout) == (2, "")
    assert "the recording cannot be written to" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not list((tmp_path / "traces").iterdir())


def test_from_a_folder_that_is_gone_the_command_says_so_and_commands_that_need_none_work(tmp_path):
    def in_gone(*words: str) -> subprocess.CompletedProcess[str]:
        gone = tmp_path / "gone"
        gone.mkdir()
        script = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m tracer {' '.join(words)}"
        return subprocess.run(["sh", "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False)

    ran, explained = in_gone("run", "--", "true"), in_gone("explain", "SYNC001")

    assert (ran.returncode, explained.returncode) == (2, 0)
    assert "does not exist any more" in ran.stderr
    assert "Traceback" not in ran.stderr + explained.stderr
