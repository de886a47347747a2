# Aliases; the scripts need no make.
.PHONY: demo test test-engines test-gpu test-scenarios test-peers pictures soak fuzz lint type golden bench

demo:
	scripts/demo

test:
	scripts/test

test-engines:
	scripts/test-engines

# Where there is a GPU: tests/gpu/README.md.
test-gpu:
	scripts/test-gpu

lint: .venv
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

type: .venv
	.venv/bin/mypy

# Rewrites the golden expositions and Kubernetes' copy of the rules; read the diff before you commit it.
golden: .venv
	.venv/bin/python -m pytest tests/test_golden.py tests/test_docs.py --update-golden
	.venv/bin/python deploy/kubernetes/rules.py

# Ten seeds of every scripted day of triage, where make test tries two; SEEDS=30 for more.
SEEDS ?= 10
test-scenarios: .venv
	KVWATCH_SCENARIO_SEEDS=$(SEEDS) .venv/bin/python -m pytest tests/test_triage_scenarios.py

# The dashboards and alerts against a real Prometheus, the demo's whole day of four minutes included: docs/demo.md.
.PHONY: test-dashboards demo-alerts
test-dashboards: .venv
	.venv/bin/python -m pytest tests/test_dashboards*.py tests/test_rules.py tests/alerts tests/alerts/whole_day.py

# The demo with Prometheus and Alertmanager beside it, to look at; FROM=12:00 begins at noon.
FROM ?= 08:00
demo-alerts: .venv
	.venv/bin/python -m tests.alerts.look $(FROM)

# The pictures in README and docs: of the page, and of the dashboards by answers of a real Prometheus.
pictures: .venv
	.venv/bin/python -m tests.pictures
	.venv/bin/python -m tests.previews

bench: .venv
	.venv/bin/python bench/daemon.py

# Faults by chance against the real daemon: MINUTES=120 for two hours. make test tries a few for half a minute.
MINUTES ?= 10
soak: .venv
	.venv/bin/python -m tests.soak --minutes $(MINUTES)

# Every reader of foreign bytes, SECONDS each, guided by coverage; inputs worth keeping stay in .fuzz.
SECONDS ?= 60
fuzz:
	scripts/environment fuzz
	.venv/bin/python -m tests.fuzz --seconds $(SECONDS)

# kvwatch beside nvitop, gpustat and nvitop-exporter on the same driver: docs/peers.md.
test-peers: .venv
	.venv/bin/python bench/peers.py

.PHONY: .venv
.venv:
	scripts/environment dev
