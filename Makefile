# Aliases; the scripts need no make.
.PHONY: demo test test-engines test-gpu test-scenarios test-peers test-scenarios pictures lint type golden bench

demo:
	scripts/demo

test:
	scripts/test

test-engines:
	scripts/test-engines

# Where there is a GPU: tests/gpu/README.md.
test-gpu:
	scripts/test-gpu

# Every scripted day with ten seeds in place of three; SEEDS=30 for more.
SEEDS ?= 10
test-scenarios: .venv
	KVWATCH_SCENARIO_SEEDS=$(SEEDS) .venv/bin/python -m pytest tests/test_triage_scenarios.py -q

lint: .venv
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

type: .venv
	.venv/bin/mypy

# Rewrites the golden expositions; read the diff before you commit it.
golden: .venv
	.venv/bin/python -m pytest tests/test_golden.py tests/test_docs.py --update-golden

# Ten seeds of every scripted day of triage, where make test tries two.
test-scenarios: .venv
	KVWATCH_SCENARIO_SEEDS=10 .venv/bin/python -m pytest tests/test_triage_scenarios.py

# The README's pictures of the page.
pictures: .venv
	.venv/bin/python -m tests.pictures

bench: .venv
	.venv/bin/python bench/daemon.py

# kvwatch beside nvitop, gpustat and nvitop-exporter on the same driver: docs/peers.md.
test-peers: .venv
	.venv/bin/python bench/peers.py

.PHONY: .venv
.venv:
	scripts/environment dev
