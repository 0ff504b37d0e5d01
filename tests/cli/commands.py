"""Run the real command in a process of its own and look at what a user would see."""

from __future__ import annotations

import os
import subprocess
import sys


def labelwise(*arguments, stdin: str | bytes | None = None, cwd=None, code: int = 0, env=None):
    """The finished process; its exit code must be as expected and it must not show a traceback."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        [sys.executable, "-m", "labelwise.cli.main", *map(str, arguments)],
        input=given,
        capture_output=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        timeout=120,
    )
    done.out, done.err = done.stdout.decode(), done.stderr.decode()
    assert "Traceback" not in done.err, done.err
    assert done.returncode == code, (done.returncode, done.out, done.err)
    return done
