"""The folder of handed cases and traces beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("TRACER_SHARED", Path(__file__).resolve().parents[2] / "shared"))
H200 = SHARED / "traces" / "h200"
PUBLIC = SHARED / "traces" / "public"
CASES = SHARED / "cases"

if not SHARED.is_dir():
    if os.environ.get("CI"):
        raise RuntimeError(f"{SHARED} is missing: the handed cases and traces belong beside the checkout")
    pytest.skip(f"needs the traces in {SHARED}; set TRACER_SHARED", allow_module_level=True)
