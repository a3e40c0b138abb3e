#!/usr/bin/python3
"""A scripted stand-in for the engine: it takes its command line, leaks its key into the log and listens as the engine does."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

argv = sys.argv[1:]
options = {argv[i][2:]: argv[i + 1] for i in range(len(argv) - 1) if argv[i].startswith("--")}
key = None
if "config" in options:
    key = re.search(r'"(.*)"', Path(options["config"]).read_text()).group(1)
print("argv=" + json.dumps(argv), flush=True)
print("env=" + json.dumps({name: value for name, value in os.environ.items() if name.startswith("DOUBLE_")}), flush=True)
print(f"server_args={{'api_key': '{key}', 'port': {options['port']}}}", flush=True)
if key:  # the same in two writes, and with a progress bar
    sys.stdout.write(f"\rLoading 10%\rLoading 20% key {key[:7]}")
    sys.stdout.flush()
    time.sleep(0.3)
    sys.stdout.write(f"{key[7:]} done\n")
    sys.stdout.flush()
if os.environ.get("DOUBLE_EXIT"):
    sys.exit(int(os.environ["DOUBLE_EXIT"]))
store = socket.socket()
store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
store.bind(("0.0.0.0", int(options["nccl-port"])))
store.listen(5)
helper = subprocess.Popen(["/bin/sleep", "100000"])
streams = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.path == "/crash":  # as the engine does: say why, then kill all children and itself
            print(f"Scheduler hit an exception with {key}", flush=True)
            helper.kill()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.path != "/stream":
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"ok")
            return
        streams.append(self)
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(12):
            self.wfile.write(f"chunk {number}\n".encode())
            self.wfile.flush()
            time.sleep(0.4)
        self.wfile.write(b"END\n")
        streams.remove(self)

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True


server = Server((options["host"], int(options["port"])), Handler)


def stop(*_):
    def drain():
        while streams:
            time.sleep(0.1)
        print(f"drained, the key was {key}", flush=True)
        os._exit(0)

    threading.Thread(target=drain).start()


signal.signal(signal.SIGTERM, stop)
print("The server is fired up and ready to roll!", flush=True)
server.serve_forever()
