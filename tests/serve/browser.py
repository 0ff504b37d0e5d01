"""A real Chromium, driven over a pipe with its DevTools protocol: no driver, no package."""

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WAIT = 60


def find_chromium():
    """The path of a Chromium, or None."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, folder):
        read_here, write_there = _pipe()
        read_there, write_here = _pipe()
        arguments = [
            find_chromium(), "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--disable-background-networking",
            f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        quiet = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        actions = [(os.POSIX_SPAWN_DUP2, read_there, 3), (os.POSIX_SPAWN_DUP2, write_there, 4), quiet]
        self.pid = os.posix_spawn(arguments[0], arguments, os.environ, file_actions=actions, setpgroup=0)
        os.close(read_there)
        os.close(write_there)
        self.reading, self.writing, self.rest, self.number = read_here, write_here, b"", 0
        self.session = None
        self.events = []
        page = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)  # the group that was started here, and nothing else
        os.waitpid(self.pid, 0)
        os.close(self.reading)
        os.close(self.writing)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _next(self):
        while b"\0" not in self.rest:
            piece = os.read(self.reading, 1 << 20)
            assert piece, "Chromium has ended"
            self.rest += piece
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    # --- what a person does and sees ---

    def open(self, address):
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete'")

    def value(self, expression):
        """The value of a JavaScript expression; promises are awaited."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression):
        """Until an expression is true; returns its value."""
        end = time.monotonic() + WAIT
        while not (found := self.value(expression)):
            assert time.monotonic() < end, f"never true: {expression}\n{self.value('document.body.innerText')}"
            time.sleep(0.05)
        return found

    def text(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)}).innerText")

    def visible(self, selector):
        return self.value(f"document.querySelector({json.dumps(selector)})?.checkVisibility() ?? false")

    def click(self, selector):
        """With the mouse, in the middle of the element."""
        where = self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.scrollIntoView({{block: 'center'}});"
            "const box = one.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=where[0], y=where[1], button="left", clickCount=1)

    def type(self, selector, text):
        """Replace what a field has, by key strokes."""
        self.value(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.focus(); one.select(); }})()"
        )
        self.call("Input.insertText", text=text) if text else self.press("Delete")

    def press(self, key, modifiers=0):
        codes = {"Enter": 13, "Tab": 9, "Delete": 46, " ": 32}
        text = {"Enter": "\r", " ": " "}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, modifiers=modifiers, windowsVirtualKeyCode=codes[key],
                text=text if kind == "keyDown" and not modifiers else "",
            )  # fmt: skip

    def choose_file(self, selector, path):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], nodeId=node)

    def drop(self, files):
        """Drop files (name, media type, content) on the page."""
        listed = [[name, kind, base64.b64encode(content).decode()] for name, kind, content in files]
        self.value(
            "(() => { const carried = new DataTransfer(); for (const [name, type, content] of "
            + json.dumps(listed)
            + ") carried.items.add(new File([Uint8Array.from(atob(content), (one) => one.charCodeAt(0))], name, {type}));"
            "document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: carried, bubbles: true, cancelable: true})); })()"
        )

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path):
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def faults(self):
        """Errors that the browser has logged: exceptions, refused content."""
        self.value("1")
        texts = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                texts.append(json.dumps(event["params"]["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                texts.append(event["params"]["entry"]["text"])
        return texts


def _pipe():
    """A pipe whose ends are not among the first descriptors, which the browser gets its own as."""
    low = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low]
    for end in low:
        os.close(end)
    return high
