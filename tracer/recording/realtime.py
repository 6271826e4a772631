"""The clocks as they were before the program could put others in their place.

For modules that are loaded only once the program is under way, as tests do that freeze the time.
"""

from __future__ import annotations

from time import monotonic, monotonic_ns, perf_counter_ns, sleep, time_ns

__all__ = ["monotonic", "monotonic_ns", "perf_counter_ns", "sleep", "time_ns"]
