"""The benchmark agrees with CUPTI, do_bench and torch.utils.benchmark, from 5 us to 100 ms."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def functions():
    """name -> function, from tiny to large."""
    made = {}

    def rand(*shape, dtype=torch.float32):
        return torch.randn(*shape, device="cuda", dtype=dtype)

    small, mid, big = rand(1024), rand(1 << 22), rand(1 << 27)
    made["add 4 KB"] = lambda: small + 1
    made["add 16 MB"] = lambda: mid + 1
    made["add 512 MB"] = lambda: big + 1
    made["sum 512 MB"] = lambda: big.sum()
    for n in (512, 2048, 8192):
        a = rand(n, n, dtype=torch.bfloat16)
        made[f"matmul {n}"] = lambda a=a: a @ a
    x = rand(4096, 4096)
    made["softmax"] = lambda: torch.softmax(x, -1)
    made["sort"] = lambda: torch.sort(mid)
    c = rand(16384, 16384, dtype=torch.bfloat16)

    def chain():
        y = c
        for _ in range(6):
            y = y @ c
        return y

    made["chain of 6"] = chain
    side = torch.cuda.Stream()

    def two_streams():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = big + 1
        torch.cuda.current_stream().wait_stream(side)
        return y

    made["side stream"] = two_streams
    return made


def cupti_ns(function, repeats=7):
    """Median span from the first kernel to the end of the last, from the profiler, with a cold L2 and a warm GPU."""
    from torch.profiler import ProfilerActivity, profile

    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    spans = []
    for _ in range(repeats):
        for _ in range(5):
            function()  # a large product draws so much power that the first ones run at a higher clock
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            flush.zero_()
            torch.cuda._sleep(2_000_000)  # so that launching is over before the first kernel starts
            function()
            torch.cuda.synchronize()
        events = [
            e
            for e in profiler.profiler.kineto_results.events()
            if e.device_type() == torch.autograd.DeviceType.CUDA and e.duration_ns() > 0
        ]
        events.sort(key=lambda e: e.start_ns())
        spin = next(i for i, e in enumerate(events) if "spin" in e.name())
        events = events[spin + 1 :]
        spans.append(max(e.end_ns() for e in events) - min(e.start_ns() for e in events))
    return float(np.median(spans))


@pytest.mark.parametrize("name", functions() if torch.cuda.is_available() else ["no CUDA"])
def test_gpu_time_agrees_with_the_peers(name, record_property):
    import triton
    from torch.utils.benchmark import Timer

    import tracer

    function = functions()[name]
    (one,) = tracer.bench(function, max_seconds=4).candidates
    truth = cupti_ns(function)
    do_bench = triton.testing.do_bench(function, warmup=20, rep=150, return_mode="median") * 1e6
    timer = Timer("f()", globals={"f": function}).blocked_autorange(min_run_time=0.3).median * 1e9
    record_property("row", f"{name}: ours {one.gpu_ns.p50_ns:.0f} cupti {truth:.0f} do_bench {do_bench:.0f}")
    print(
        f"{name:14} ours {one.gpu_ns.p50_ns / 1e3:10.2f} us"
        f"  [{one.interval_ns[0] / 1e3:.2f}, {one.interval_ns[1] / 1e3:.2f}]"
        f"  cupti {truth / 1e3:10.2f}  do_bench {do_bench / 1e3:10.2f}  Timer {timer / 1e3:10.2f}"
        f"  naive {one.naive_ns / 1e3:10.2f}  launch-bound {one.launch_bound}"
    )

    # One microsecond is what events resolve; do_bench keeps the events' own cost.
    assert abs(one.gpu_ns.p50_ns - truth) < 1_000 + 0.05 * truth
    assert abs(one.gpu_ns.p50_ns - do_bench) < 6_000 + 0.08 * do_bench
    assert one.wall_ns.p50_ns > 0.9 * truth


def test_a_naive_timer_claims_the_launch():
    import tracer

    a = torch.randn(8192, 8192, device="cuda")

    (one,) = tracer.bench(lambda: a @ a, max_seconds=3).candidates

    assert one.naive_ns < one.gpu_ns.p50_ns / 10
    assert not one.launch_bound
