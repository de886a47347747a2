"""Grafana dashboards as code: queries, house panel types and layouts apart; `json/` is generated."""
