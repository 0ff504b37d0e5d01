"""Machine code is cached per user: shared by copies of the sources, compiled again when a callee changes."""

import os
import re
import sys
from pathlib import Path

import numba
import pytest

import labelwise
from forking import run_forked
from labelwise.kernels.jit import cache_folder, inner, is_writable, jit

CALLEE = "from labelwise.kernels.jit import jit\n\n@jit\ndef number():\n    return {}\n"
CALLER = """
from labelwise.kernels.jit import jit
from made.callee import number

@jit
def asked(x):
    return x * 0 + number()
"""
ASK = "from made.caller import asked; print(asked({})); print(sum(asked.stats.cache_hits.values()))"

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="folders of users are POSIX")


@pytest.fixture(scope="module", autouse=True)
def _compiler():
    """What Numba sets up for its first function is there before the forks."""

    @jit
    def number():
        return 7

    @jit
    def asked(x):
        return x * 0 + number()

    assert asked(1) == 7


def package_in(folder):
    package = folder / "made"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "caller.py").write_text(CALLER)
    (package / "callee.py").write_text(CALLEE.format(7))
    (folder / "temporary").mkdir()
    return folder


@pytest.fixture
def package(tmp_path):
    return package_in(tmp_path / "first")


def run(place, argument="1", code=ASK, **environment):
    """The answer, how many compilations were found in the cache, and the log."""
    kept = {key: value for key, value in os.environ.items() if key not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    kept |= {"HOME": "/dev/null", "TMPDIR": str(place / "temporary"), **environment}

    def as_a_new_process():
        os.chdir(place)
        sys.path.insert(0, "")
        cache_folder.cache_clear()
        numba.config.reload_config()
        exec(code.format(argument), {})

    done = run_forked(as_a_new_process, kept)
    assert done.code == 0, done.err
    answer, hits = done.out.split()
    return float(answer), int(hits), done.err


def private(place):
    return place / "temporary" / f"labelwise-kernels-{os.geteuid()}"


def test_a_changed_callee_is_compiled_again(package):
    cache = {"XDG_CACHE_HOME": str(package / "cache")}
    assert run(package, **cache)[:2] == (7, 0)
    assert run(package, **cache)[:2] == (7, 1)
    (package / "made" / "callee.py").write_text(CALLEE.format(22))
    assert run(package, **cache)[:2] == (22, 0)


@pytest.mark.parametrize("line", ["from made import number", "from . import number", "from .callee import number"])
def test_packages_and_relative_imports_are_followed(package, line):
    (package / "made" / "caller.py").write_text(CALLER.replace("from made.callee import number", line))
    (package / "made" / "__init__.py").write_text("from made.callee import number\n")
    cache = {"XDG_CACHE_HOME": str(package / "cache")}
    assert run(package, **cache)[:2] == (7, 0)
    assert run(package, **cache)[:2] == (7, 1)
    (package / "made" / "callee.py").write_text(CALLEE.format(22))
    assert run(package, **cache)[:2] == (22, 0)
    (package / "made" / "__init__.py").write_text("from made.callee import number\n\nother = 1\n")
    assert run(package, **cache)[:2] == (22, 0 if "callee" not in line else 1)


@pytest.mark.parametrize("option", [{"NUMBA_BOUNDSCHECK": "1"}, {"NUMBA_OPT": "1"}])
def test_options_of_numba_have_machine_code_of_their_own(package, option):
    cache = {"XDG_CACHE_HOME": str(package / "cache")}
    assert run(package, **cache)[:2] == (7, 0)
    assert run(package, **cache, **option)[:2] == (7, 0)
    assert run(package, **cache, **option)[:2] == (7, 1)
    assert run(package, **cache)[:2] == (7, 1)


def test_every_kernel_uses_this_cache():
    """Numba's own would write beside the sources."""
    sources = Path(labelwise.__file__).parent.rglob("*.py")
    numba = {p.name for p in sources if re.search(r"\bnjit\b|cache=True", p.read_text(encoding="utf-8"))}
    assert numba == {"jit.py"}


def test_functions_inside_kernels_have_no_file_of_their_own(package):
    (package / "made" / "callee.py").write_text(CALLEE.format(9).replace("jit\n", "inner\n"))
    cache = {"XDG_CACHE_HOME": str(package / "cache")}
    assert run(package, **cache)[:2] == (9, 0)
    assert [path.name.split(".")[0] for path in (package / "cache").rglob("*.nbc")] == ["caller"]
    assert run(package, **cache)[:2] == (9, 1)


def test_functions_inside_kernels_cannot_be_called_from_python():
    @inner
    def number(x):
        return x + 1

    @jit
    def asked(x):
        return 2 * number(x)

    assert asked(3) == 8
    with pytest.raises(TypeError, match=r"number.*only kernels can call it"):
        number(3)


def test_copies_of_the_sources_share_the_cache(package, tmp_path):
    other = package_in(tmp_path / "second")
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert run(package, **cache)[:2] == (7, 0)
    assert run(other, **cache)[:2] == (7, 1)


def test_signatures_do_not_replace_each_other(package):
    cache = {"XDG_CACHE_HOME": str(package / "cache")}
    assert [run(package, argument, **cache)[1] for argument in ("1", "1.5", "1", "1.5")] == [0, 0, 1, 1]


def test_nothing_is_written_beside_the_sources_or_at_import(package):
    done = run(package, code="import made.caller; print(1, 0)", XDG_CACHE_HOME=str(package / "cache"))
    assert done[2] == ""
    assert not (package / "cache").exists()
    run(package, XDG_CACHE_HOME=str(package / "cache"))
    assert not list((package / "made").rglob("*.nb*"))
    assert list((package / "cache" / "labelwise" / "kernels").rglob("*.nbc"))


def test_without_a_home_kernels_go_to_a_private_temporary_folder(package):
    answer, _, log = run(package)
    assert answer == 7
    assert "NUMBA_CACHE_DIR" in log
    assert private(package).stat().st_mode & 0o777 == 0o700
    assert run(package)[1] == 1


def test_a_folder_that_others_could_write_to_is_not_used(package):
    elsewhere = package / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    private(package).symlink_to(elsewhere)
    assert run(package)[0] == 7
    assert list(elsewhere.iterdir()) == []
    private(package).unlink()
    private(package).mkdir()
    private(package).chmod(0o777)
    assert run(package)[0] == 7
    assert list(private(package).iterdir()) == []
    assert list((package / "temporary").iterdir()) == [private(package)], "the other folder ends with its process"


@pytest.mark.parametrize("variable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME"])
def test_a_folder_of_the_users_choice(package, variable):
    answer, _, log = run(package, **{variable: str(package / "mine")})
    assert (answer, log) == (7, "")
    assert list((package / "mine").rglob("*.nbc"))
    assert not private(package).exists()


def test_a_full_disk_costs_only_the_cache(package):
    (package / "cache").mkdir()
    (package / "cache" / "labelwise").mkdir()
    code = "import made.caller, pathlib; pathlib.Path('cache/labelwise/kernels').write_text(''); " + ASK
    assert run(package, code=code, XDG_CACHE_HOME=str(package / "cache"))[:2] == (7, 0)
    assert Path(package / "cache" / "labelwise" / "kernels").is_file()


def test_is_writable(tmp_path):
    assert is_writable(tmp_path / "not" / "yet")
    (tmp_path / "file").write_text("")
    assert not is_writable(tmp_path / "file" / "below")
    assert not is_writable(tmp_path / "file")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    assert not is_writable(tmp_path / "broken" / "below")
