"""Records what the host launches and what the GPU executes, and says where and why the host stands still."""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "load": "tracer.readers",
    "audit": "tracer.auditor",
    "record": "tracer.recording",
    "step": "tracer.recording",
    "bench": "tracer.recording.bench",
    "locate": "tracer.recording.locate",
    "forbid_syncs": "tracer.recording.ledger",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Public names are imported when first used, so that `import tracer` loads neither torch nor numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'tracer' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
