"""Load test of `emat serve`: 50 clients send 1,000 photos; errors, and how long an answer takes.

python benchmarks/serve.py pets.emat --clients 50 --requests 1000
"""

import argparse
import io
import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image


def photo(number: int) -> bytes:
    """A JPEG of noise on a gradient, another one for each number."""
    random = np.random.default_rng(number)
    pixels = np.linspace(0, 200, 480)[:, None, None] + random.integers(0, 50, (480, 640, 3))
    out = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(out, "JPEG")
    return out.getvalue()


def ask(address: str, body: bytes) -> tuple[float, int]:
    """Seconds until the answer, and its status; 0 if there was none."""
    began = time.perf_counter()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, body, method="POST"), timeout=3600) as response:
            response.read()
            return time.perf_counter() - began, response.status
    except OSError as error:
        return time.perf_counter() - began, getattr(error, "code", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("segmenter", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ["no_proxy"] = "127.0.0.1"
    words = ["serve", str(asked.segmenter), "--port", str(port), "--workers", str(asked.workers)]
    server = subprocess.Popen([sys.executable, "-m", "emat", *words])
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                if server.poll() is not None:
                    sys.exit("the server ended")
                time.sleep(0.2)
        bodies = [photo(number) for number in range(10)]
        began = time.perf_counter()
        with ThreadPoolExecutor(asked.clients) as clients:
            address = f"http://127.0.0.1:{port}/predict"
            answers = list(clients.map(lambda number: ask(address, bodies[number % 10]), range(asked.requests)))
        taken = time.perf_counter() - began
    finally:
        server.terminate()
        server.wait()
    seconds = np.array([each for each, _ in answers])
    errors = sum(status != 200 for _, status in answers)
    p50, p95 = np.percentile(seconds, [50, 95])
    print(f"{asked.requests} requests of {asked.clients} clients: {errors} errors, {len(answers) / taken:.1f} a second")
    print(f"an answer took {p50:.2f} s (p50), {p95:.2f} s (p95); the server ended with code {server.returncode}")


if __name__ == "__main__":
    main()
