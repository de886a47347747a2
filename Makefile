# Aliases; the scripts need no make.
.PHONY: demo test test-engines test-peers lint type golden bench

demo:
	scripts/demo

test:
	scripts/test

test-engines:
	scripts/test-engines

lint: .venv
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/lint-imports

type: .venv
	.venv/bin/mypy

# Rewrites the golden expositions; read the diff before you commit it.
golden: .venv
	.venv/bin/python -m pytest tests/test_golden.py tests/test_docs.py --update-golden

bench: .venv
	.venv/bin/python bench/daemon.py

# kvwatch beside nvitop, gpustat and nvitop-exporter on the same driver: docs/peers.md.
test-peers: .venv
	.venv/bin/python bench/peers.py

.PHONY: .venv
.venv:
	scripts/environment dev
