"""Measure the studio in a real browser. It needs emat[studio], Playwright and Chromium.

    python benchmarks/studio.py               # 500 photos are dropped at once
    python benchmarks/studio.py --count 50

Seconds are processor time of the server, which other work on the machine does not change much; the browser's own time
is not in them. Clicks are measured if MobileSAM's weights are here (`emat weights fetch mobilesam`).
"""

import argparse
import io
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

from emat import Segmenter
from emat.backbone.mobilesam import find_mobilesam
from emat.pictures.demo import demo_photos
from emat.studio.server import serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 3_600_000  # milliseconds
CLICKS = 10
IDLE = "() => !document.querySelector('#photo-progress').textContent && !document.querySelector('#progress').firstChild"
WATCH = """() => {
  window.longest = 0;
  const note = list => { window.longest = Math.max(window.longest, ...list.getEntries().map(each => each.duration)); };
  new PerformanceObserver(note).observe({entryTypes: ["longtask"]});
  performance.setResourceTimingBufferSize(100000);
}"""
ANSWERED = (
    "index => /cheetah|nothing/.test(document.querySelectorAll('#list .card-text')[index]?.lastChild.textContent)"
)
RECEIVED = """() => performance.getEntriesByType("resource").filter(each => /state|upload/.test(each.name))
  .reduce((sum, each) => sum + each.decodedBodySize, 0) / 1e6"""
CLICK = """async ([address, count]) => {
  const times = [];
  for (let turn = 0; turn < count; turn++) {
    const began = performance.now(), body = JSON.stringify({points: [{x: 250, y: 250, inside: 1}]});
    await (await fetch(address, {method: "POST", body})).arrayBuffer();
    times.push(performance.now() - began);
  }
  return Math.min(...times);
}"""


def photo(side: int, number: int = 0) -> dict[str, Any]:
    """A photo of the demo with its longer side at `side` pixels; every `number` gives different pixels."""
    paths = list(demo_photos().queries.values())
    with Image.open(paths[number % len(paths)]) as image:
        small = image.convert("RGB")
    small.thumbnail((side, side))
    pixels = np.array(small)
    pixels[0, 0] = (number % 256, number // 256, 0)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=90)
    return {"name": f"{side}-{number}.jpg", "mimeType": "image/jpeg", "buffer": data.getvalue()}


def memory() -> float:
    """The resident memory of this process in MB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def report(what: str, value: str) -> None:
    """Print a row of the table."""
    print(f"| {what} | {value} |", flush=True)


def open_page(browser: Any, address: str) -> Any:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(PATIENCE)
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(address)
    page.wait_for_selector("#classes .empty")
    return page


def measure_one(page: Any) -> None:
    """From a dropped photo to its mask, refinement and clicks."""
    page.click("#demo")
    page.wait_for_selector("#list .dots")
    page.wait_for_function(IDLE)
    count = page.locator("#list li").count()
    began = time.process_time()
    page.set_input_files("#photo-files input", [photo(500)])
    page.wait_for_function(ANSWERED, arg=count)
    report("a photo of 500 px is dropped: until its mask is there", f"{time.process_time() - began:.2f} s")
    if find_mobilesam() is None:
        return
    began = time.process_time()
    page.wait_for_function(IDLE)
    report("until its outlines are crisp, after that", f"{time.process_time() - began:.2f} s")
    began = time.process_time()
    page.set_input_files("#draft-files input", [photo(500, 1)])
    with page.expect_request(lambda request: request.url.endswith("/click")) as asked:
        page.wait_for_selector("#editor .status >> text=/Ready|Click one object/")
        page.locator("#editor canvas").click()
        page.wait_for_selector(".object-actions")
    report("a photo is opened in the editor: until its first click is answered", f"{time.process_time() - began:.2f} s")
    began = time.process_time()
    fastest = page.evaluate(CLICK, [asked.value.url, CLICKS])
    used = (time.process_time() - began) / CLICKS
    report("a further click", f"{used:.3f} s (fastest answer here: {fastest / 1000:.3f} s)")


def measure_many(page: Any, count: int) -> None:
    """Many photos at once, without examples: what the page and the server do about them beside predicting."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.jpg" for number in range(count)]
        for number, path in enumerate(paths):
            path.write_bytes(photo(240, number)["buffer"])
        page.evaluate(WATCH)
        began = time.process_time()
        page.set_input_files("#photo-files input", paths)
        page.wait_for_function(f"() => document.querySelectorAll('#list li').length === {count}")
        page.wait_for_function(IDLE)
    report(f"{count} photos are dropped: until all are on the page", f"{time.process_time() - began:.1f} s")
    report("sent to the page about them", f"{page.evaluate(RECEIVED):.1f} MB")
    report("longest time in which the page did not answer", f"{page.evaluate('longest'):.0f} ms")


def main() -> None:
    """Start a studio of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="how many photos are dropped at once")
    arguments = parser.parse_args()
    with serving(Segmenter.load("default"), private=True) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        print("| what | measured |\n|---|---|")
        page = open_page(browser, address)
        measure_one(page)
        measure_many(open_page(browser, address), arguments.count)
        if sys.platform == "linux":
            before = memory()
            page.keyboard.press("Escape")
            page.keyboard.press("Escape")
            page.click("#start-over")
            page.wait_for_selector("#classes .empty")
            report("memory of the server before and after Start over", f"{before:.0f} MB, {memory():.0f} MB")
        browser.close()


if __name__ == "__main__":
    main()
