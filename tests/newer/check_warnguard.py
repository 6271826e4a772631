"""The guard in front of the warnings filters, on the interpreter that runs this."""

import copy
import pickle
import sys
import threading
import types
import warnings

import pytest

from tracer.recording.warnguard import TESTED, WarnGuard, program_action

SIGN = "called a synchronizing"


class Guarded(list):
    def __enter__(self):
        self.guard = WarnGuard(lambda text: text.startswith(SIGN) and (self.append(text) or True))
        assert self.guard.install()
        return self

    def __exit__(self, *error):
        self.guard.uninstall()


@pytest.fixture(autouse=True)
def own_warnings():
    with warnings.catch_warnings():
        yield


def sync():
    warnings.warn(SIGN + " operation", UserWarning, stacklevel=1)


def test_this_python_is_one_of_the_tested():
    assert sys.version_info[:2] in TESTED


def test_error_filters_and_records_see_nothing():
    with Guarded() as heard:
        warnings.simplefilter("error")
        sync()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sync()
            warnings.warn("other", UserWarning, stacklevel=1)

    assert len(heard) == 2
    assert [str(w.message) for w in caught] == ["other"]


def test_a_reset_and_a_list_of_the_program_s_own_leave_us_in_front():
    with Guarded() as heard:
        warnings.resetwarnings()
        sync()
        warnings.filters = [("error", None, Warning, None, 0)]
        sync()
        warnings.filters.insert(0, ("error", None, UserWarning, None, 0))
        sync()

        assert len(warnings.filters) == 2
    assert len(heard) == 3


def test_a_thread_inside_another_s_catch_is_heard():
    with Guarded() as heard, warnings.catch_warnings():
        warnings.simplefilter("error")
        thread = threading.Thread(target=sync)
        thread.start()
        thread.join()

    assert len(heard) == 1


def test_copies_of_the_filters_are_plain_lists_of_the_program_s_own():
    plain = list(warnings.filters)
    with Guarded():
        assert copy.copy(warnings.filters) == plain
        assert type(copy.deepcopy(warnings.filters)) is list
        assert warnings.filters.__add__([1]) == [*warnings.filters, 1] == [*plain, 1]
        assert warnings.filters * 2 == plain * 2
        assert type(pickle.loads(pickle.dumps(warnings.filters))) is list
        assert warnings.filters == warnings.filters.copy()
        assert isinstance(warnings, types.ModuleType)


def test_every_change_of_the_list_works_on_what_the_program_sees():
    first, second, third = (("ignore", None, UserWarning, name, 0) for name in "abc")
    with Guarded() as heard:
        filters = warnings.filters
        filters[:] = [first, second]
        filters[0] = third
        filters += [first]
        filters.extend([second])
        assert filters == [third, second, first, second]
        filters.insert(-1, third)
        assert filters.pop() == second
        assert filters.pop(0) == third
        assert (filters.count(first), filters.index(third)) == (1, 2)
        filters.reverse()
        filters.sort(key=lambda item: item[3])
        assert list(filters) == [first, second, third]
        del filters[1:]
        filters.remove(first)
        filters.insert(-5, second)
        assert filters == [second]
        filters.clear()
        assert len(filters) == 0
        warnings.simplefilter("error")
        sync()

    assert len(heard) == 1


def test_what_the_program_s_own_filters_would_do_is_known():
    assert program_action("x", UserWarning, "m", 3) == "error"
    warnings.filterwarnings("once", message="x", category=UserWarning, module="m", lineno=3)
    assert program_action("x", UserWarning, "m", 3) == "once"
    assert program_action("x", UserWarning, "m", 4) == "error"
    assert program_action("y", UserWarning, "m", 3) == "error"


def test_afterwards_the_module_is_as_before():
    before = list(warnings.filters)
    with Guarded():
        assert type(warnings) is not types.ModuleType

    assert type(warnings) is types.ModuleType
    assert type(warnings.filters) is list
    assert warnings.filters == before
    with pytest.raises(UserWarning, match=SIGN):
        sync()
