"""One of the handed pairs (`shared/cases/pairs`), its own loop replaced by ours: handed_pair.py FOLDER NAME."""

import runpy
import sys

from common import drive

folder, name = sys.argv[1:3]
sys.path.insert(0, folder)
del sys.modules["common"]
import common as theirs  # noqa: E402

theirs.drive = lambda name, step, steps=None: drive(step)
runpy.run_path(f"{folder}/{name}.py", run_name="__main__")
