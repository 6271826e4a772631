import pytest

from tracer.source_tree import Tails, python_files


def test_only_the_users_python_files_are_listed(tmp_path):
    for name in ("a.py", "src/b.py", "src/notes.txt", ".hidden/c.py", "venv/d.py", "node_modules/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    assert sorted(python_files(tmp_path)) == ["a.py", "src/b.py"]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/workspace/repo/src/model/train.py", "src/model/train.py"),
        ("C:\\repo\\src\\model\\train.py", "src/model/train.py"),
        ("/elsewhere/tests/train.py", "tests/train.py"),
        ("train.py", None),  # two could be meant
        ("/x/other.py", None),
        ("/usr/lib/python3.11/main.py", None),
        ("/venv/lib/python3.11/site-packages/pkg/main.py", None),
        ("<string>", None),
        ("/app/main.py", "main.py"),
    ],
)
def test_a_path_is_matched_by_its_longest_tail(path, found):
    tails = Tails(["src/model/train.py", "tests/train.py", "main.py"])

    assert tails.find(path) == found
