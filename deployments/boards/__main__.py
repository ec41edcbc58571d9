"""`python -m deployments.boards` writes Grafana's boards, dashboards/*.json."""

from deployments.boards.grafana import BOARDS, FOLDER, written

for name in BOARDS:
    (FOLDER / f"{name}.json").write_text(written(name))
