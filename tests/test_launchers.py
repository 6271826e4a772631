"""The recorder gets into the right processes, and into no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import ENVIRONMENT, LOOP, SHORT, run_tracer
from tracer.recording.unreached import is_isolated

INJECT = Path(__file__).resolve().parents[1] / "tracer" / "recording" / "inject"

LOADER = """
import torch
from torch.utils.data import DataLoader, TensorDataset
def main():
    data = TensorDataset(torch.arange(48.0).reshape(48, 1))
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    seen = 0.0
    for (batch,) in DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="{}"):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        seen += float(batch.sum())
    print(seen)
if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_workers_of_a_loader_are_left_alone(tmp_path: Path, method: str):
    ran = run_tracer(tmp_path, LOADER.format(method))

    assert ran.stdout == f"{sum(range(48)):.1f}\n"
    assert ran.status == 0
    assert len(ran.ranks) == 1
    assert ran.manifest["complete"]
    assert ran.names.count("aten::linear") == 4


RANKS = """
import os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
done = 0
try:
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        done += 1
finally:
    sys.stdout.write(f"rank {dist.get_rank()} did {done}\\n")
dist.destroy_process_group()
"""
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node", "2"]


def torchrun(tmp_path: Path) -> list[str]:
    return [*TORCHRUN, str(tmp_path / "program.py")]


def test_a_child_forked_before_the_first_step_is_left_alone(tmp_path: Path):
    program = LOOP + (
        "child = os.fork()\n"
        "if not child:\n"
        "    train(12)\n"
        "    os._exit(3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "train(12)\n"
    )

    ran = run_tracer(tmp_path, program)

    assert ran.stdout == "3\n"
    assert ran.manifest["complete"]
    assert ran.manifest["pid"] != 0


def test_all_ranks_of_torchrun_land_in_one_folder(tmp_path: Path):
    ran = run_tracer(tmp_path, RANKS, settings=(*SHORT, "record.ranks=all"), command=torchrun(tmp_path))

    assert ran.status == 0
    assert [manifest["rank"] for manifest in ran.manifests] == [0, 1]
    assert len({path.parent for path in ran.ranks}) == 1
    assert all(manifest["complete"] and manifest["world_size"] == 2 for manifest in ran.manifests)
    assert {manifest["window"]["first_step"] for manifest in ran.manifests} == {4}


def test_stop_after_ends_all_ranks_at_the_same_step(tmp_path: Path):
    ran = run_tracer(tmp_path, RANKS, settings=(*SHORT, "window.stop_after=true"), command=torchrun(tmp_path))

    assert ran.status == 0
    assert len(ran.ranks) == 1  # rank 0 alone by default
    assert ran.manifest["complete"]
    # The step that ends the window does not come back to the program.
    assert sorted(line for line in ran.stdout.splitlines() if line) == ["rank 0 did 7", "rank 1 did 7"]


SPAWNED = """
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
def work(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(12):
        model(torch.ones(4, 8)).sum().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
    dist.barrier()  # a rank that leaves early takes the other down in gloo
    dist.destroy_process_group()
if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, args=(port,), nprocs=2)
"""


def test_ranks_that_the_program_spawns_itself_are_told_apart(tmp_path: Path):
    ran = run_tracer(tmp_path, SPAWNED)

    assert ran.status == 0
    assert ran.manifest["rank"] == 0  # and rank 1 is not recorded
    assert ran.manifest["world_size"] == 2
    assert ran.manifest["complete"]


def test_a_shell_script_is_followed_to_its_python(tmp_path: Path):
    script = tmp_path / "start.sh"
    script.write_text(f"#!/bin/sh\necho from the shell\nexec {sys.executable} {tmp_path / 'program.py'}\n")
    script.chmod(0o755)

    ran = run_tracer(tmp_path, LOOP + "train(12)", command=[str(script)])

    assert ran.stdout == "from the shell\n"
    assert ran.manifest["complete"]


@pytest.mark.parametrize("flag", ["-I", "-E"])
def test_an_interpreter_that_cannot_be_reached_is_reported(tmp_path: Path, flag: str):
    ran = run_tracer(tmp_path, "print('hello')", command=["python", flag, str(tmp_path / "program.py")])

    assert ran.stdout == "hello\n"
    assert ran.status == 0
    assert ran.ranks == []
    assert "-I, -E" in ran.stderr


def test_a_worker_that_cannot_be_reached_is_reported_though_its_launcher_was(tmp_path: Path):
    program = (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-s', '-I', '-c', 'import time; time.sleep(2.5)'], check=True)\n"
    )

    ran = run_tracer(tmp_path, program)

    assert "keeps the recorder out" in ran.stderr
    assert "-I -c import time" in ran.stderr


@pytest.mark.parametrize(
    ("words", "isolated"),
    [
        ("python -I train.py", True),
        ("/usr/bin/python3.12 -u -E -m pkg", True),
        ("python -uS x.py", True),
        ("python -c import -I", False),
        ("python -m pkg -I", False),
        ("python train.py -I", False),
        ("python -W error train.py -E", False),
        ("bash -E x.sh", False),
    ],
)
def test_the_flags_that_keep_us_out_are_those_of_python(words: str, isolated: bool):
    assert is_isolated(words.split()) is isolated


def test_a_module_runs_as_by_python_m(tmp_path: Path):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "train.py").write_text(LOOP + "train(12)\nprint(__name__, __spec__.name, sys.argv[1:])\n")

    ran = run_tracer(tmp_path, "", "--epochs", "1", command=["python", "-m", "pkg.train"])

    assert ran.stdout == "__main__ pkg.train ['--epochs', '1']\n"
    assert ran.manifest["complete"]
    assert next(ran.folder.iterdir()).name.startswith("train-")


def injected(tmp_path: Path, code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        **ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(str(path) for path in (INJECT, *paths)),
        "TRACER_RUN": str(tmp_path),
    }
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )


def test_a_sitecustomize_that_was_there_runs_as_before(tmp_path: Path):
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.marked = __file__\nVALUE = 3\n")

    done = injected(
        tmp_path, "import sys, sitecustomize as s; print(sys.marked, s.VALUE, s.__file__, s.__spec__.origin)", theirs
    )

    assert done.stdout.split() == [str(theirs / "sitecustomize.py"), "3", *[str(theirs / "sitecustomize.py")] * 2]
    assert done.stderr == ""


def test_a_process_without_torch_sees_nothing_of_us(tmp_path: Path):
    done = injected(
        tmp_path,
        "import sys\nprint([path for path in sys.path if 'inject' in path], 'sitecustomize' in sys.modules)\n"
        "print(sorted(name for name in sys.modules if name.startswith(('tracer', 'msgspec', 'yaml'))))\n",
    )

    assert done.stdout == "[] False\n[]\n"
    assert done.stderr == ""


def test_a_process_without_torch_pays_less_than_five_milliseconds(tmp_path: Path):
    def cost_s(environment: dict[str, str]) -> float:
        child = os.posix_spawn(sys.executable, [sys.executable, "-c", "pass"], environment)
        used = os.wait4(child, 0)[2]
        return used.ru_utime + used.ru_stime

    ours = {**ENVIRONMENT, "PYTHONPATH": str(INJECT), "TRACER_RUN": str(tmp_path)}
    rounds = [(cost_s(ENVIRONMENT), cost_s(ours)) for _ in range(15)]

    assert min(b for _, b in rounds) - min(a for a, _ in rounds) < 0.005


def test_an_import_error_of_torch_shows_no_frame_of_ours(tmp_path: Path):
    (tmp_path / "torch.py").write_text("raise ImportError('libnothing.so is missing')\n")

    ran = run_tracer(tmp_path, "import torch")

    assert ran.status == 1
    assert "libnothing.so" in ran.stderr
    assert "sitecustomize" not in ran.stderr
    assert "recording" not in ran.stderr.split("libnothing.so is missing")[0]


@pytest.mark.parametrize("file", ["tracer.py", "tracer/__init__.py"])
@pytest.mark.parametrize("first", ["import tracer", ""])
def test_a_module_of_the_programs_own_named_tracer_stays_its_own(tmp_path: Path, file: str, first: str):
    source = tmp_path / "source"
    (source / file).parent.mkdir(parents=True)
    (source / file).write_text("rays = 3\n")
    (source / "main.py").write_text(f"{first}\n{LOOP}train(9)\nimport tracer\nprint(tracer.rays)\n")

    ran = run_tracer(tmp_path, "", command=["python", "source/main.py"])

    assert (ran.status, ran.stdout) == (0, "3\n")
    assert f"a module of its own named tracer, whose place ours would take: {source / file}" in ran.stderr


def test_files_of_the_current_folder_are_not_taken_for_what_we_need(tmp_path: Path):
    for name in ("argparse", "msgspec", "yaml", "numpy", "rich", "jinja2", "config", "errors"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(f'the wrong {__name__}')\n")

    ran = run_tracer(tmp_path, "", command=["python", "-c", "print('here')"])

    assert (ran.status, ran.stdout) == (0, "here\n")
    assert "neither CUDA nor an optimizer" in ran.stderr
