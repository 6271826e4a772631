"""The ledger hears torch's warnings, and the program cannot tell.

There is no GPU here, so another warning of torch that takes the same way (indexing
with uint8) stands for a synchronisation, and a variable for the sync debug mode.
"""

import subprocess
import sys
import textwrap
import threading
import time
import warnings

import pytest
import torch

from tracer import config
from tracer.chunks import read_chunks
from tracer.errors import TracerError
from tracer.recording import ledger
from tracer.recording.session import Session
from tracer.recording.syncwatch import SyncWatch

SIGN = "indexing with dtype torch.uint8"


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    """As much of torch.cuda as the watch touches: a mode, and an initialisation that has happened."""
    mode = [0]

    def set_mode(value):
        if value not in (0, 1, 2):
            raise RuntimeError("invalid value of debug mode")
        mode[0] = value

    monkeypatch.setattr(torch._C, "_cuda_set_sync_debug_mode", set_mode, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_get_sync_debug_mode", lambda: mode[0], raising=False)
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
    return mode


class Heard(list):
    def __init__(self):
        self.watch = SyncWatch(SIGN)

    def __enter__(self):
        assert self.watch.prepare() == ""
        self.watch.listen(self._hear)
        return self

    def __exit__(self, *error):
        self.watch.unlisten(self._hear)
        self.watch.release()
        assert self.watch.broken == ""

    def _hear(self, what, start_ns, end_ns):
        frame = sys._getframe()
        while frame.f_code.co_filename != __file__ or frame.f_code.co_name == "_hear":
            frame = frame.f_back
        self.append((frame.f_code.co_name, frame.f_lineno))


def sync():
    return torch.arange(4.0)[torch.tensor([1, 0, 1, 0], dtype=torch.uint8)]


def under_error_filter():
    warnings.simplefilter("error")
    sync()


def inside_record():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sync()
    return [str(w.message) for w in caught]


def after_reset():
    warnings.resetwarnings()
    sync()
    return list(warnings.filters)


def own_showwarning():
    shown = []
    warnings.showwarning = lambda *values, **more: shown.append(values)
    sync()
    return shown


def own_list():
    warnings.filters = [("error", None, Warning, None, 0)]
    warnings.filters += [("ignore", None, DeprecationWarning, None, 0)]
    sync()
    return warnings.filters[0], len(warnings.filters), list(warnings.filters)


def ordinary_warnings():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            warnings.warn("mine", UserWarning, stacklevel=1)
        warnings.filterwarnings("ignore", message="mine")
        warnings.warn("mine", UserWarning, stacklevel=1)
    return [(str(w.message), w.lineno - ordinary_warnings.__code__.co_firstlineno) for w in caught]


def numpy_way():
    saved = warnings.filters
    warnings.filters = saved[:]
    warnings.simplefilter("error")
    try:
        sync()
    finally:
        warnings.filters = saved
    return saved is warnings.filters


def thread_inside_catch():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        thread = threading.Thread(target=sync)
        thread.start()
        thread.join()


PROGRAMS = [
    under_error_filter,
    inside_record,
    after_reset,
    own_showwarning,
    own_list,
    numpy_way,
    thread_inside_catch,
]


@pytest.fixture
def own_warnings():
    """Filters and hooks as the test finds them, whatever it does to them."""
    with warnings.catch_warnings():
        yield


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_sync_is_heard_once_and_the_program_sees_nothing(program, own_warnings, monkeypatch):
    with monkeypatch.context() as quiet:
        quiet.setitem(globals(), "sync", lambda: None)  # as on a GPU without us: no warning at all
        with warnings.catch_warnings():
            expected = program()

    with Heard() as heard, warnings.catch_warnings():
        found = program()

    assert found == expected
    assert [name for name, _ in heard] == ["sync"]


def test_other_warnings_go_their_way(own_warnings):
    expected = ordinary_warnings()

    with Heard() as heard:
        found = ordinary_warnings()

    assert found == expected == [("mine", 4)]
    assert heard == []


def test_a_catch_from_before_our_time_does_not_make_us_blind(own_warnings):
    caught = warnings.catch_warnings()
    caught.__enter__()
    with Heard() as heard:
        caught.__exit__(None, None, None)
        warnings.simplefilter("error")
        sync()
        sync()

        assert len(heard) == 2


def test_filters_are_the_program_s_own_list_to_all_eyes(own_warnings):
    plain = list(warnings.filters)

    with Heard():
        seen = warnings.filters
        assert (seen == plain, len(seen), list(seen), seen[:], [*reversed(seen)], seen[-1], repr(seen)) == (
            True,
            len(plain),
            plain,
            plain,
            plain[::-1],
            plain[-1],
            repr(plain),
        )
        item = ("ignore", None, ImportWarning, "x", 1)
        seen.insert(0, item)
        assert seen[0] == item
        assert item in seen
        seen.remove(item)
        seen.append(item)
        assert seen.index(item) == len(plain)
        del seen[-1]
        assert seen == plain
    assert type(warnings.filters) is list
    assert warnings.filters == plain


def test_after_us_everything_is_as_before(own_warnings):
    before = (type(warnings), torch._C._cuda_set_sync_debug_mode, torch.cuda.Event.synchronize)

    with Heard():
        assert torch._C._cuda_set_sync_debug_mode is not before[1]

    assert (type(warnings), torch._C._cuda_set_sync_debug_mode, torch.cuda.Event.synchronize) == before


def many(times):
    for _ in range(times):
        sync()


@pytest.mark.parametrize("action", ["default", "module", "once", "always", "ignore", "error"])
def test_a_program_that_wants_the_warnings_gets_those_it_would_get(action, own_warnings):
    def program():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)
            try:
                many(3)
            except UserWarning as error:
                return [str(error)]
        return [(w.filename, w.lineno, str(w.message), w.category) for w in caught]

    expected = program()

    with Heard() as heard:
        torch._C._cuda_set_sync_debug_mode(1)
        found = program()
        torch._C._cuda_set_sync_debug_mode(0)

    assert found == expected
    assert len(heard) == (1 if action == "error" else 3)


def test_the_program_s_own_mode_is_what_it_asks_and_what_it_gets_back(cuda):
    with Heard():
        assert cuda == [1]
        assert torch._C._cuda_get_sync_debug_mode() == 0
        torch._C._cuda_set_sync_debug_mode(2)
        assert cuda == [2]
        assert torch._C._cuda_get_sync_debug_mode() == 2
        with pytest.raises(RuntimeError, match="invalid"):
            torch._C._cuda_set_sync_debug_mode(7)
        assert torch._C._cuda_get_sync_debug_mode() == 2

    assert cuda == [2]
    torch._C._cuda_set_sync_debug_mode(0)


def test_torch_s_notice_that_the_mode_is_new_is_kept_for_the_program_s_first_call(monkeypatch, own_warnings):
    notice = "Synchronization debug mode is a prototype feature and does not yet detect all"
    first = [True]

    def set_mode(value):
        if first.pop() if first else False:
            warnings.warn(notice, UserWarning, stacklevel=2)

    monkeypatch.setattr(torch._C, "_cuda_set_sync_debug_mode", set_mode)
    with warnings.catch_warnings(record=True) as caught, Heard():
        warnings.simplefilter("always")
        before = len(caught)
        for _ in range(2):
            torch._C._cuda_set_sync_debug_mode(1)
        torch._C._cuda_set_sync_debug_mode(0)

    assert before == 0
    assert [str(w.message) for w in caught] == [notice]


def test_an_operation_that_raises_after_its_sync_is_heard_and_raises_its_own_error():
    with Heard() as heard, pytest.raises(IndexError, match="out of bounds"):
        torch.ones(2, 2)[torch.tensor([1, 0], dtype=torch.uint8), torch.tensor([7])]

    assert len(heard) == 1


def test_a_python_backward_is_heard_at_its_line():
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            sync()
            return grad

    with Heard() as heard:
        Reads.apply(torch.ones(2, requires_grad=True)).sum().backward()

    assert [name for name, _ in heard] == ["sync"]


def test_warnings_as_errors_from_the_command_line_stay_harmless():
    code = f"""
        import torch, warnings
        torch._C._cuda_set_sync_debug_mode = lambda mode: None
        torch._C._cuda_get_sync_debug_mode = lambda: 0
        torch.cuda._lazy_call = lambda call: call()
        from tracer.recording.syncwatch import SyncWatch
        watch, heard = SyncWatch({SIGN!r}), []
        assert watch.prepare() == ""
        watch.listen(lambda *what: heard.append(what))
        torch.arange(4.0)[torch.tensor([1, 0, 1, 0], dtype=torch.uint8)]
        print(len(heard))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )

    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_a_failing_listener_does_not_reach_the_program():
    watch = SyncWatch(SIGN)
    watch.prepare()
    watch.listen(lambda *what: 1 / 0)
    try:
        assert sync().tolist() == [0.0, 2.0]
    finally:
        watch._listeners = ()
        watch.release()
    assert "ZeroDivisionError" in watch.broken


def test_the_recorder_writes_whole_stacks_with_thread_and_time(tmp_path):
    watch = SyncWatch(SIGN)
    session = Session(tmp_path, config.Record())
    recorder = ledger.Recorder(session, watch)
    recorder.arm()
    recorder.open()
    start = time.monotonic_ns()
    many(3)
    end = time.monotonic_ns()
    said = recorder.close()
    recorder.disarm()
    session.flush()

    rows, lost = read_chunks(tmp_path / "ledger.chunks")
    frames = {row[1]: row for row in rows if row[0] == "frame"}
    syncs = [row for row in rows if row[0] == "sync"]

    assert said == {"on": True, "saw": 3, "dropped": 0}
    assert lost == 0
    assert len(syncs) == 3
    for _, began, ended, thread, leaf, what in syncs:
        assert (began, thread, what) == (-1, threading.get_native_id(), "sync")
        assert start <= ended <= end
        assert frames[leaf][3:6] == [__file__, sync.__code__.co_firstlineno + 1, "sync"]
        assert frames[frames[leaf][2]][5] == "many"


def test_a_recorder_that_is_switched_off_hooks_nothing(tmp_path):
    before = (type(warnings), torch._C._cuda_set_sync_debug_mode)
    recorder = ledger.Recorder(Session(tmp_path, config.Record(ledger=False)), SyncWatch(SIGN))

    recorder.arm()
    recorder.open()

    assert (type(warnings), torch._C._cuda_set_sync_debug_mode) == before
    assert recorder.close() == {"on": False, "saw": 0, "dropped": 0, "why": "switched off"}


def test_forbidden_syncs_fail_with_their_line():
    watch = SyncWatch(SIGN)
    line = sync.__code__.co_firstlineno + 1

    with pytest.raises(AssertionError, match=rf"test_ledger.py:{line} in sync"), ledger.forbid_syncs(watch=watch):
        sync()
    watch.release()


def test_as_many_syncs_as_allowed_are_listed():
    watch = SyncWatch(SIGN)

    with ledger.forbid_syncs(max=2, watch=watch) as seen:
        many(2)
    watch.release()

    assert [sync_.place[2] for sync_ in seen] == ["sync", "sync"]
    assert seen[0].thread == "MainThread"


def test_on_a_python_where_this_is_not_tested_it_stays_off_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("tracer.recording.warnguard.TESTED", ((3, 9),))
    before = type(warnings)
    recorder = ledger.Recorder(Session(tmp_path, config.Record()), SyncWatch(SIGN))

    recorder.arm()
    recorder.open()
    said = recorder.close()

    assert (said["on"], "not tested on Python 3." in said["why"]) == (False, True)
    assert type(warnings) is before
    with pytest.raises(TracerError, match="cannot be forbidden"), ledger.forbid_syncs(watch=SyncWatch(SIGN)):
        pass


def test_a_forked_child_has_the_program_s_own_mode_and_hears_nothing():
    code = f"""
        import os, torch
        mode = [0]
        torch._C._cuda_set_sync_debug_mode = lambda value: mode.__setitem__(0, value)
        torch._C._cuda_get_sync_debug_mode = lambda: mode[0]
        torch.cuda._lazy_call = lambda call: call()
        from tracer.recording.syncwatch import SyncWatch
        watch, heard = SyncWatch({SIGN!r}), []
        watch.prepare()
        watch.listen(lambda *what: heard.append(what))
        assert mode == [1]
        if not os.fork():
            import warnings
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                torch.arange(4.0)[torch.tensor([1, 0, 1, 0], dtype=torch.uint8)]
            os._exit(10 * mode[0] + len(heard) + (len(caught) != 1))
        print(os.waitstatus_to_exitcode(os.wait()[1]), mode)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)

    assert done.stdout == "0 [1]\n", done.stderr


def test_a_kill_loses_no_more_than_the_last_second(tmp_path):
    code = f"""
        import os, pathlib, signal, time, torch
        torch._C._cuda_set_sync_debug_mode = lambda mode: None
        torch._C._cuda_get_sync_debug_mode = lambda: 0
        torch.cuda._lazy_call = lambda call: call()
        from tracer import config
        from tracer.recording import ledger
        from tracer.recording.session import Session
        from tracer.recording.syncwatch import SyncWatch
        session = Session(pathlib.Path({str(tmp_path)!r}), config.Record())
        recorder = ledger.Recorder(session, SyncWatch({SIGN!r}))
        recorder.arm()
        recorder.open()
        session.start()
        index = torch.tensor([1, 0, 1, 0], dtype=torch.uint8)
        end, count = time.monotonic() + 2.7, 0
        while time.monotonic() < end:
            torch.arange(4.0)[index]
            count += 1
            time.sleep(0.01)
        print(count, time.monotonic_ns(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr
    count, killed_ns = map(int, done.stdout.split())

    rows, lost = read_chunks(tmp_path / "ledger.chunks")
    syncs = [row for row in rows if row[0] == "sync"]
    frames = {row[1]: row for row in rows if row[0] == "frame"}

    assert lost == 0
    assert 0 < len(syncs) <= count
    assert killed_ns - syncs[-1][2] < 1_500_000_000
    assert all(frames[row[4]][3] == "<string>" for row in syncs)


def test_naming_stacks_does_not_import_torch_s_compiler():
    code = """
import sys, torch
from tracer.recording import stacks
[[place]] = stacks.symbolize([stacks.catch()])
print(place, "torch._dynamo" in sys.modules, "_inductor" in vars(torch))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert done.stdout == "('<string>', 4, '<module>') False False\n", done.stderr
