"""The five commands from a clone to a served model of one's own table, run as README and quickstart give them.

`fresh` runs all five as they are and is slow, because it installs everything from the package index. `prepared` finds an
environment that is installed already, that of the tests with the code of the clone; the other four commands are the same.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from pathlib import Path

import pytest

import docs_world

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"<!-- not run: tests/test_five_commands.py runs exactly these -->\n```bash\n(.*?)```", re.S)
PORT = 8000


def commands():
    (found,) = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    return found.strip().splitlines()


def free_port():
    """The port of the commands, or another one where that is taken."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", PORT))
        except OSError:
            one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def prepare_environment(clone):
    """An environment as `make install` leaves it: the packages of this one, the code of the clone."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    environment = clone / ".venv"
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "here.pth").write_text(f"{clone / 'src'}\n{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    script = environment / "bin" / "labelwise"
    script.write_text(f"#!{environment}/bin/python\nfrom labelwise.cli.main import main\nmain()\n", encoding="utf-8")
    script.chmod(0o755)
    (environment / "serve.installed").touch()


def test_both_pages_have_the_same_five_commands():
    assert BLOCK.findall((ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")) == [
        "\n".join(commands()) + "\n"
    ]
    assert len(commands()) == 5


@pytest.mark.parametrize("installed", [pytest.param("fresh", marks=pytest.mark.slow), "prepared"])
def test_from_a_clone_to_a_served_model(installed, tmp_path):
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    for program in ("git", "make", "curl"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a clone of the repository")
    docs_world.write_tables(tmp_path)
    surroundings = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    clone, install, train, serve, ask = commands()

    def run(command):
        done = subprocess.run(command, shell=True, cwd=tmp_path, env=surroundings, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    run(clone.replace("URL", str(ROOT)))
    if installed == "prepared":
        prepare_environment(tmp_path / "labelwise")
    run(install)
    run(train)
    port = free_port()
    if port != PORT:
        serve, ask = f"{serve} --port {port}", ask.replace(str(PORT), str(port))
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(f"exec {serve}", shell=True, cwd=tmp_path, env=surroundings, stderr=log)
        try:
            wait_until_ready(port, server, tmp_path / "log")
            answer = json.loads(run(ask))
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
    assert answer["model"] == "catalogue"
    assert len(answer["results"][0]["labels"]) == 3


def wait_until_ready(port, server, log, seconds=240):
    end = time.monotonic() + seconds
    while True:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready"):
                return
        except OSError:
            time.sleep(0.1)
