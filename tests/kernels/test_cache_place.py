"""Kernels are compiled and kept where neither their own folder nor the home can be written to."""

import os
import subprocess
import sys

import pytest

from labelwise.kernels.cache_place import can_be_written

KERNEL = "from numba import njit\n\n@njit(cache=True)\ndef number():\n    return 7\n"
PACKAGE = """
from pathlib import Path
from labelwise.kernels.cache_place import find_cache_place
find_cache_place(Path(__file__).parent, "stamp")
"""

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders of users are POSIX")


@pytest.fixture
def package(tmp_path):
    """A package whose __pycache__ is a file: not even root can write into that."""
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "__init__.py").write_text(PACKAGE)
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "__pycache__").write_text("")
    (tmp_path / "temporary").mkdir()
    return tmp_path


def run(place, code="from made.kernel import number; print(number())", **environment):
    kept = {key: value for key, value in os.environ.items() if key not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    kept |= {"HOME": "/dev/null", "TMPDIR": str(place / "temporary"), **environment}
    done = subprocess.run([sys.executable, "-c", code], cwd=place, env=kept, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def private(place):
    return place / "temporary" / f"labelwise-kernels-{os.geteuid()}"


def test_kernels_go_to_a_private_temporary_folder(package):
    done = run(package)
    assert done.stdout == "7\n"
    assert "NUMBA_CACHE_DIR" in done.stderr
    assert private(package).stat().st_mode & 0o777 == 0o700
    assert list((private(package) / "stamp").glob("*/*.nbc"))


def test_a_folder_that_others_could_write_to_is_not_used(package):
    elsewhere = package / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    private(package).symlink_to(elsewhere)
    assert run(package).stdout == "7\n"
    assert list(elsewhere.iterdir()) == []
    private(package).unlink()
    private(package).mkdir()
    private(package).chmod(0o777)
    assert run(package).stdout == "7\n"
    assert list(private(package).iterdir()) == []
    assert list((package / "temporary").iterdir()) == [private(package)], "the other folder ends with its process"


def test_numba_imported_before_is_told_too(package):
    assert run(package, "import numba; from made.kernel import number; print(number())").stdout == "7\n"


@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_place_that_numba_has_is_left_to_it(package, variable):
    done = run(package, **{variable: str(package / "mine")})
    assert done.stdout == "7\n"
    assert done.stderr == ""
    assert list((package / "mine").rglob("*.nbc"))
    assert not private(package).exists()


def test_what_can_be_written(tmp_path):
    assert can_be_written(tmp_path / "not" / "yet")
    (tmp_path / "file").write_text("")
    assert not can_be_written(tmp_path / "file" / "below")
    assert not can_be_written(tmp_path / "file")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    assert not can_be_written(tmp_path / "broken" / "below")
