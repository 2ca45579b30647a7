"""A review under load: many clients who page through categories and decide, against a server of its own.

    python benchmarks/review_load.py --clients 20 --seconds 300 --images 20000

Each client asks for the list of a category, for 40 of its pictures and for the overview, and confirms a few images, as
somebody does who looks at each page for a second. Prints the number of requests and errors, and the median and the 95th
percentile of the time of each kind. The first tenth of the time warms up and does not count.
"""

import argparse
import http.client
import json
import multiprocessing
import random
import sys
import tempfile
import threading
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.reviews import saved_run, session_of, token_of

from sortal.web.app.server import Server

PAGE = 40


def serve(images: int, link: Any) -> None:
    """In a process of its own: serve a review of images in 50 categories."""
    with tempfile.TemporaryDirectory() as folder:
        run = saved_run(Path(folder) / "run", images=images, categories=50, known=20)
        with Server(session_of(replace(run))) as server:
            link.put(server.link())
            server.run()


class Page:
    """A browser tab, as far as the server can tell."""

    def __init__(self, port: int, key: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {"Authorization": f"Bearer {key}", "Origin": f"http://127.0.0.1:{port}"}

    def ask(self, path: str, body: Any = None) -> tuple[int, bytes]:
        content = None if body is None else json.dumps(body).encode()
        headers = self.headers | ({} if body is None else {"Content-Type": "application/json"})
        self.connection.request("GET" if body is None else "POST", path, content, headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read()


def work(number: int, port: int, key: str, until: float, times: dict[str, list[float]], codes: dict[int, int]) -> None:
    page, draw = Page(port, key), random.Random(number)
    while perf_counter() < until:
        at = perf_counter()
        code, body = page.ask(f"/api/category/{draw.randrange(50)}")
        times["list of a category"].append(perf_counter() - at)
        found = [code]
        rows = json.loads(body)["rows"]
        first = draw.randrange(max(1, len(rows) - PAGE))
        for row in rows[first : first + PAGE]:
            at = perf_counter()
            found.append(page.ask(f"/thumb/{row}")[0])
            times["picture"].append(perf_counter() - at)
        at = perf_counter()
        code, body = page.ask("/api/overview")
        times["overview"].append(perf_counter() - at)
        found.append(code)
        at = perf_counter()
        seen = json.loads(body)["version"]
        code, _ = page.ask("/api/decide", {"seen": seen, "action": {"do": "accept", "rows": draw.sample(rows, 3)}})
        times["decision"].append(perf_counter() - at)
        found.append(code)
        for each in found:
            codes[each] += 1
        sleep(draw.uniform(0.5, 1.5))  # a person looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--images", type=int, default=20_000)
    arguments = parser.parse_args()
    link: Any = multiprocessing.Queue()
    server = multiprocessing.Process(target=serve, args=(arguments.images, link), daemon=True)
    server.start()
    url = link.get(timeout=600)
    port = int(url.rpartition(":")[2].partition("/")[0])
    first = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(200):
        try:
            first.request("POST", "/api/enter", token_of(url), {"Origin": f"http://127.0.0.1:{port}"})
            break
        except ConnectionRefusedError:
            sleep(0.05)
    key = json.loads(first.getresponse().read())["key"]
    for name, seconds in (("warm", arguments.seconds / 10), ("counted", arguments.seconds)):
        times: dict[str, list[float]] = defaultdict(list)
        codes: dict[int, int] = defaultdict(int)
        until = perf_counter() + seconds
        threads = [
            threading.Thread(target=work, args=(number, port, key, until, times, codes))
            for number in range(arguments.clients)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if name == "counted":
            print(json.dumps({"requests": sum(codes.values()), "codes": dict(sorted(codes.items()))}))
            for kind, values in times.items():
                median, p95 = np.percentile(values, [50, 95]) * 1000
                print(f"{kind}: {len(values):,} times, median {median:.0f} ms, 95 % within {p95:.0f} ms")
    server.terminate()


if __name__ == "__main__":
    main()
