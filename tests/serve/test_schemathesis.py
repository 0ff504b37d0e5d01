"""Requests that Schemathesis generates from the OpenAPI document, valid and invalid ones: never a server error."""

import shutil
import subprocess

import pytest

from serve.running import running_server

pytest.importorskip("fastapi", reason="the extra serve is not installed")

pytestmark = pytest.mark.slow


def test_no_server_error(folder, tmp_path):
    command = shutil.which("schemathesis")
    if command is None:
        pytest.skip("schemathesis is not installed (pip install schemathesis, in any environment on the PATH)")
    with running_server({"topics": folder}) as address:
        found = subprocess.run(
            [command, "run", f"{address}/openapi.json", "--checks", "not_a_server_error", "--max-examples", "50",
             "--exclude-path-regex", "/learn$"],  # which is refused with 503, as Annif does
            capture_output=True, text=True, cwd=tmp_path, timeout=3000,
        )  # fmt: skip
    assert found.returncode == 0, found.stdout
