"""A headless Chromium, driven over a pipe with its DevTools protocol: no driver, no port, no further package."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",  # root has no other way, and the page is ours
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
)
PATIENCE = 60.0  # seconds


def find():
    """The path of a browser, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page; ``events`` are all that it reported."""

    def __init__(self, program, profile):
        to_browser, self.writing = os.pipe()
        self.reading, from_browser = os.pipe()
        # The protocol is spoken on descriptors 3 and 4; the shell puts the pipes there, whatever numbers they have.
        redirect = f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", redirect, program, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # so that its helpers end with it
        )
        os.close(to_browser)
        os.close(from_browser)
        self.numbers = itertools.count(1)
        self.pending = b""
        self.events = []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.session = None
        with contextlib.suppress(OSError, TimeoutError):
            self.call("Browser.close")
        os.close(self.writing)
        os.close(self.reading)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def receive(self):
        """The next message."""
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.pending:
            if not select.select([self.reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            piece = os.read(self.reading, 1 << 20)
            if not piece:
                raise ConnectionError("the browser has ended")
            self.pending += piece
        message, self.pending = self.pending.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **arguments):
        """Ask for something; the answer."""
        number = next(self.numbers)
        request = {"id": number, "method": method, "params": arguments}
        if self.session is not None:
            request["sessionId"] = self.session
        content = json.dumps(request).encode() + b"\0"
        while content:
            content = content[os.write(self.writing, content) :]
        while True:
            message = self.receive()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]
            self.events.append(message)

    def wait(self, method):
        """Until an event has been reported."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.receive())

    def open(self, path, width, height, dark=False, media=""):
        """Show a file on a screen of that size, or on paper; everything reported before is forgotten."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("Page.loadEventFired")

    def evaluate(self, expression):
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"])
        return found["result"].get("value")

    def press(self, key, code):
        """Press a key and let it go."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def screenshot(self, path, full=True):
        """A picture of the page, the whole of it or what the screen shows."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=full)
        path.write_bytes(base64.b64decode(found["data"]))

    @property
    def complaints(self):
        """Errors and warnings of the console, exceptions, and requests that failed or went elsewhere."""
        found = []
        for event in self.events:
            method, told = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(told["exceptionDetails"]["text"])
            elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                found.append(f"console: {told['args']}")
            elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                found.append(f"log: {told['entry']['text']}")
            elif method == "Network.loadingFailed":
                found.append(f"request failed: {told['errorText']}")
            elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith(("file:", "data:")):
                found.append(f"request: {told['request']['url']}")
        return found
