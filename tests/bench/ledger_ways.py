"""Ways of hearing synchronisations, compared on a GPU: what each adds to a read, to an operator, and what it sees.

python tests/bench/ledger_ways.py
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time


def setup(way: str, heard: list[str]) -> None:
    import torch

    if way == "warnings, guarded":
        from tracer.recording import stacks
        from tracer.recording.syncwatch import WATCH

        WATCH.prepare()
        WATCH.listen(lambda what, start, end: heard.append(stacks.catch()))
    elif way == "gpu_trace callbacks":
        import torch.cuda._gpu_trace as gpu_trace

        torch._C._activate_gpu_trace()
        gpu_trace.register_callback_for_stream_synchronization(lambda *a: heard.append("stream"))
        gpu_trace.register_callback_for_event_synchronization(lambda *a: heard.append("event"))
        gpu_trace.register_callback_for_device_synchronization(lambda *a: heard.append("device"))
    elif way == "torch.library override":
        kernel = torch.library.get_kernel("aten::_local_scalar_dense", "CUDA")
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

        def read(x):
            heard.append("read")
            return kernel.call_boxed(keys, x)

        global library
        library = torch.library.Library("aten", "IMPL")
        library.impl("_local_scalar_dense", read, "CUDA")


def measure(way: str) -> None:
    import torch

    x = torch.ones(16, device="cuda")
    mask = x > 0
    heard: list[str] = []
    x.sum().item()
    try:
        setup(way, heard)
    except (AttributeError, RuntimeError, TypeError) as error:
        print(json.dumps({"failed": repr(error)}))
        return

    def each(call, times=2000):
        best = []
        for _ in range(7):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(times):
                call()
            best.append((time.perf_counter() - start) / times * 1e6)
            torch.cuda.synchronize()
        return statistics.median(best)

    found: dict[str, object] = {"read_us": each(lambda: x[0].item()), "op_us": each(lambda: x + 1, 500)}
    for name, call in {
        "item": lambda: x[0].item(),
        "nonzero": lambda: x.nonzero(),
        "mask": lambda: x[mask],
        "unique": lambda: x.unique(),
        "cpu": lambda: x.cpu(),
        "synchronize": torch.cuda.synchronize,
        "event": lambda: torch.cuda.current_stream().record_event().synchronize(),
        "stream": lambda: torch.cuda.current_stream().synchronize(),
        "empty_cache": torch.cuda.empty_cache,
    }.items():
        heard.clear()
        try:
            call()
        except RuntimeError as error:
            found[name] = repr(error)[:60]
            continue
        found[name] = len(heard)
    print(json.dumps(found))


WAYS = ("nothing", "warnings, guarded", "gpu_trace callbacks", "torch.library override")

if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(sys.argv[1])
    else:
        for way in WAYS:
            done = subprocess.run([sys.executable, __file__, way], capture_output=True, text=True, timeout=60)
            print(f"{way:24} {done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-400:]}")
