"""From files to a Trace. A module here offers `accepts(path, head) -> bool` and `load(path) -> Trace`."""
