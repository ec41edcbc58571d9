"""A Prometheus beside a running application, with the project's rules: the machine's own program.

Prometheus is in Debian's package of that name; PROMETHEUS may name another binary.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit

import ray
import yaml
from ray._private.metrics_agent import PrometheusServiceDiscoveryWriter
from ray._private.ray_constants import PROMETHEUS_SERVICE_DISCOVERY_FILE

ALERTS = Path(__file__).parents[2] / "dashboards" / "alerts.yaml"
MISSING = "no Prometheus is installed: apt-get install prometheus, or name its binary in PROMETHEUS"
_START_S = 30.0
_EVERY_S = 1.0


class Series(NamedTuple):
    labels: Mapping[str, str]
    times_s: Sequence[float]
    values: Sequence[float]


class Prometheus(NamedTuple):
    url: str

    def get(self, path: str, **fields: object) -> Any:
        url = f"{self.url}/api/v1/{path}?{urlencode(fields)}"
        return json.loads(urllib.request.urlopen(url, timeout=30).read())["data"]

    def over(self, expression: str, span: tuple[float, float], step_s: float) -> list[Series]:
        fields = {"query": expression, "start": span[0], "end": span[1], "step": step_s}
        return [
            Series(one["metric"], *_columns(one["values"]))
            for one in self.get("query_range", **fields)["result"]
        ]

    def now(self, expression: str) -> list[Series]:
        return [
            Series(one["metric"], *_columns([one["value"]]))
            for one in self.get("query", query=expression)["result"]
        ]

    def firing(self, span: tuple[float, float]) -> list[Series]:
        """When alerts fired, by name and labels."""
        return self.over('ALERTS{alertstate="firing"}', span, _EVERY_S)


def _columns(pairs: Sequence[tuple[float, str]]) -> tuple[list[float], list[float]]:
    return [float(at) for at, _ in pairs], [float(value) for _, value in pairs]


def binary() -> str | None:
    return os.environ.get("PROMETHEUS") or shutil.which("prometheus")


@contextmanager
def prometheus(metrics_url: str | None, rules: str = ALERTS.read_text()) -> Iterator[Prometheus]:
    """It scrapes the application's /metrics every second, and renames its series as Ray exports
    them, which boards and alerts use; without a URL, the nodes of the Ray that this process is
    connected to. Raises FileNotFoundError."""
    program = binary()
    if program is None:
        raise FileNotFoundError(MISSING)
    scrape: dict[str, Any] = {
        "job_name": "spindle",
        "metric_relabel_configs": [
            {
                "source_labels": ["__name__"],
                "regex": "spindle_(.*)",
                "target_label": "__name__",
                "replacement": "ray_spindle_$1",
            }
        ],
    }
    with tempfile.TemporaryDirectory() as name, socket.socket() as probe:
        folder = Path(name)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        (folder / "rules.yml").write_text(rules)
        if metrics_url is None:
            PrometheusServiceDiscoveryWriter(ray.get_runtime_context().gcs_address, name).write()
            files = [str(folder / PROMETHEUS_SERVICE_DISCOVERY_FILE)]
            scrape["file_sd_configs"] = [{"files": files}]
        else:
            address = urlsplit(metrics_url)
            scrape["metrics_path"] = address.path
            scrape["static_configs"] = [{"targets": [address.netloc]}]
        every = f"{_EVERY_S:.0f}s"
        config = {
            "global": {"scrape_interval": every, "evaluation_interval": every},
            "rule_files": [str(folder / "rules.yml")],
            "scrape_configs": [scrape],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        command = [
            program,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _await_ready(port, process, folder / "log")
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(30)


def _await_ready(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5)
        except (URLError, OSError):
            time.sleep(0.2)
        else:
            return
    raise TimeoutError(f"Prometheus did not start: {log.read_text()[-2000:]}")
