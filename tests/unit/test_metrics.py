"""Metrics as Prometheus and a collector of OpenTelemetry get them, from the real libraries over real sockets."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from alert_receivers import receiving
from fake_ranks import wait_for
from rank_jobs import free_port
from traincheck.cli import monitoring
from traincheck.config import Config, load
from traincheck.errors import BadOption, MissingExtra
from traincheck.reporting.metrics.otlp import Otlp
from traincheck.reporting.metrics.prometheus import Prometheus, is_loopback
from traincheck.vocab.run_status import ENDED, GOING, TRAINING, RankStatus, RunStatus

RANK = RankStatus(0, 7, "", TRAINING, 12, 13, 1, 3.5, 0.25, 1.5, 1.0)
STATUS = RunStatus(
    "runs/today", GOING, "train.py", "run", None, False, 9, 4, 2, 1, (RANK, replace(RANK, rank=1, steps=11, dropped=0))
)
EXPECTED = {
    'traincheck_steps_total{rank="0"}': 12.0,
    'traincheck_steps_total{rank="1"}': 11.0,
    'traincheck_steps_per_second{rank="0"}': 3.5,
    "traincheck_rules": 9.0,
    "traincheck_rules_checked": 4.0,
    'traincheck_findings{severity="error"}': 2.0,
    'traincheck_findings{severity="notice"}': 1.0,
    'traincheck_windows_dropped_total{rank="0"}': 1.0,
    'traincheck_cost_ratio{rank="0"}': 0.25,
    'traincheck_silent_seconds{rank="0"}': 1.5,
    "traincheck_run_over": 0.0,
}


def page(address: str, token: str = "") -> str:
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
        return str(answer.read().decode())


def numbers(text: str) -> dict[str, float]:
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


@pytest.fixture
def exporter() -> Iterator[Prometheus]:
    prometheus = Prometheus("127.0.0.1", 0)
    yield prometheus
    prometheus.close()


def test_the_page_shows_the_status_of_the_run(exporter: Prometheus) -> None:
    assert numbers(page(exporter.address)) == {}  # before the first look
    exporter.look([], STATUS)
    values = numbers(page(exporter.address))
    assert EXPECTED.items() <= values.items()
    assert values['traincheck_run_info{folder="runs/today",mode="run",script="train.py"}'] == 1.0
    exporter.look([], replace(STATUS, state=ENDED, ranks=(replace(RANK, steps_per_second=None, cost=None),)))
    values = numbers(page(exporter.address))
    assert values["traincheck_run_over"] == 1.0 and not any("cost" in name for name in values)


def test_the_page_requires_the_token() -> None:
    exporter = Prometheus("127.0.0.1", 0, "s3cret")
    try:
        exporter.look([], STATUS)
        for token in ("", "s3cre", "s3cret2", "\u00e9"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                page(exporter.address, token)
        assert EXPECTED.items() <= numbers(page(exporter.address, "s3cret")).items()
    finally:
        exporter.close()


def test_an_idle_client_does_not_block_others(exporter: Prometheus) -> None:
    exporter.look([], STATUS)
    port = urllib.parse.urlsplit(exporter.address).port
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    silent[0].sendall(b"\x00\xff garbage\r\n")
    assert EXPECTED.items() <= numbers(page(exporter.address)).items()
    for connection in silent:
        connection.close()


def config(**options: str) -> Config:
    return load(options, {}, Path("/"))


def test_invalid_metrics_options_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        in_use = str(taken.getsockname()[1])
        for options, words in (
            (
                {"metrics": ("http",)},
                "--metrics was given 'http'; expected PORT or HOST:PORT with a port from 0 to 65535",
            ),
            ({"metrics": ("70000",)}, "0 to 65535"),
            ({"metrics": ("-1",)}, "0 to 65535"),
            ({"metrics": (in_use,)}, r"a port of 127.0.0.1 that is free \(Address already in use\)"),
            ({"metrics": ("0.0.0.0:0",)}, "or a token in TRAINCHECK_METRICS_TOKEN"),
            ({"metrics": ("[::]:0",)}, "or a token in"),
            ({"metrics": ("no-such-host.invalid:0",)}, "--metrics was given .*an address of"),
            ({"metrics": ("0",), "metrics_token": "gehe\u00efm"}, r"TRAINCHECK_METRICS_TOKEN was given '\(a secret\)'"),
            ({"metrics": ("ftp://localhost:4318",)}, "--metrics was given .*begins with http"),
        ):
            with pytest.raises(BadOption, match=words):
                monitoring.receivers(config(**options))
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtra, match=r"prometheus-client.*pip install 'traincheck\[metrics\]'"):
        monitoring.receivers(config(metrics=("0",)))
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(MissingExtra, match="opentelemetry"):
        monitoring.receivers(config(metrics=("http://127.0.0.1:4318",)))


def test_other_hosts_may_ask_with_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    (exporter,) = monitoring.receivers(config(metrics=("0.0.0.0:0",), metrics_token="s3cret"))
    exporter.close()
    stderr = capsys.readouterr().err
    assert "metrics at http://0.0.0.0:" in stderr and "s3cret" not in stderr
    assert is_loopback("localhost") and is_loopback("127.8.9.1") and not is_loopback("0.0.0.0")


def test_metrics_are_off_by_default() -> None:
    before = threading.active_count()
    assert monitoring.receivers(config()) == []
    assert threading.active_count() == before


def decoded(body: bytes) -> dict[str, Any]:
    """Numbers by metric and labels, as the protocol has them."""
    import gzip

    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    request = ExportMetricsServiceRequest.FromString(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    values: dict[str, Any] = {}
    for resource in request.resource_metrics:
        attributes = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
        values["service"] = attributes["service.name"]
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            for point in (metric.sum if metric.HasField("sum") else metric.gauge).data_points:
                labels = {attribute.key: attribute.value.string_value for attribute in point.attributes}
                assert labels.pop("traincheck.script") == "train.py" and labels.pop("traincheck.folder")
                kind = "sum" if metric.HasField("sum") else "gauge"
                values[f"{metric.name} {kind} {json.dumps(labels)}"] = point.as_double or point.as_int
    return values


def test_a_collector_gets_the_numbers() -> None:
    messages: list[str] = []
    with receiving("/v1/metrics", decoded) as receiver:
        otlp = Otlp(receiver.url.removesuffix("/v1/metrics"), messages.append, every=0.1)
        otlp.look([], STATUS)
        wait_for(lambda: receiver.taken and len(receiver.taken[-1]) > 1)
        values = receiver.taken[-1]
        otlp.look([], replace(STATUS, errors=3, state=ENDED))
        otlp.close()
        assert receiver.taken[-1]['traincheck.findings gauge {"severity": "error"}'] == 3.0  # the last word
    assert values["service"] == "traincheck"
    assert values['traincheck.steps sum {"rank": "1"}'] == 11.0
    assert values['traincheck.findings gauge {"severity": "error"}'] == 2.0
    assert values['traincheck.cost_ratio gauge {"rank": "0"}'] == 0.25
    assert values["traincheck.rules_checked gauge {}"] == 4.0
    assert messages == []


def test_a_missing_collector_is_reported_once() -> None:
    messages: list[str] = []
    otlp = Otlp(f"http://127.0.0.1:{free_port()}/s3cret", messages.append, every=0.05)
    otlp.look([], STATUS)
    wait_for(lambda: messages)
    otlp.close()
    assert len(messages) == 1 and "sent to http://127.0.0.1 (Connection refused)" in messages[0]


@pytest.mark.slow
def test_prometheus_itself_reads_the_page(tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("there is no Prometheus on this machine")
    exporter = Prometheus("127.0.0.1", 0, "s3cret")
    exporter.look([], STATUS)
    target = exporter.address.split("/")[2]
    (tmp_path / "prometheus.yml").write_text(
        f"""
scrape_configs:
  - job_name: training
    scrape_interval: 1s
    authorization: {{credentials: s3cret}}
    static_configs: [{{targets: ["{target}"]}}]
"""
    )
    port = free_port()
    words = [
        program,
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    running = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def value(query: str) -> float | None:
        address = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        try:
            result = json.loads(page(address))["data"]["result"]
        except OSError:  # it is starting
            return None
        return float(result[0]["value"][1]) if len(result) == 1 else None

    try:
        wait_for(lambda: value('up{job="training"}') == 1.0)
        for query, expected in EXPECTED.items():
            wait_for(lambda query=query, expected=expected: value(query) == expected)
        exporter.look([], replace(STATUS, errors=5, ranks=(replace(RANK, steps=400),)))
        wait_for(lambda: value('traincheck_findings{severity="error"}') == 5.0)
        wait_for(lambda: value("max(traincheck_steps_total)") == 400.0)
    finally:
        running.terminate()
        running.wait(30)
        exporter.close()
