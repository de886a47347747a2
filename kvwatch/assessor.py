"""What a snapshot gets from the polls before it: start windows, findings, a log line for each change."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.finding import Severity
from kvwatch.findings import Inspection
from kvwatch.lives import Lives

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.finding import Finding, RuleId
    from kvwatch.readings import ProcessTable, Reason
    from kvwatch.snapshot import Snapshot

log = logging.getLogger(__name__)


class Assessor:
    """Keeps the lives of servers and the inspection of their state."""

    def __init__(self) -> None:
        self._lives = Lives()
        self._inspection = Inspection()
        self._broken: set[str] = set()

    @property
    def awake_bytes(self) -> Mapping[str, Mapping[str, int]]:
        """What each server held awake, by device."""
        return self._lives.awake_bytes

    def assess(
        self,
        snapshot: Snapshot,
        *,
        table: ProcessTable,
        reasons: Mapping[str, Reason | None],
        driver_needed: bool = False,
        pace: float = 1.0,
    ) -> Snapshot:
        """Return the snapshot with its start windows and findings.

        `reasons` says by server why it does not answer; for the rest see `Inspection.advance`.
        """
        try:
            self._lives = self._lives.advance(
                snapshot.taken_at,
                servers=snapshot.servers,
                devices=snapshot.devices,
                processes=snapshot.processes,
                table=table,
                reasons=reasons,
            )
        except Exception:  # a bug here must not cost the poll
            log.exception("start windows")
        snapshot = replace(snapshot, start_windows=self._lives.windows)
        before = self._inspection.findings
        self._inspection = self._inspection.advance(
            snapshot, pools=self._lives.pools, driver_needed=driver_needed, pace=pace
        )
        self._log(before)
        return replace(snapshot, findings=self._inspection.findings, unjudged=self._inspection.unjudged)

    def _log(self, before: Sequence[Finding]) -> None:
        """Log what begins and what is over, once each; a rule that fails, when it does so first."""
        old = {_key(finding) for finding in before}
        new = {_key(finding) for finding in self._inspection.findings}
        for finding in self._inspection.findings:
            if _key(finding) not in old:
                # An error would be kvwatch's own.
                level = logging.INFO if finding.severity is Severity.INFO else logging.WARNING
                log.log(level, "%s: %s. %s", finding.rule, finding.summary, finding.next_step)
        for finding in before:
            if _key(finding) not in new and _key(finding) not in self._inspection.held:
                log.info("%s: over for %s", finding.rule, finding.server or finding.device or "this node")
        broken = {rule.rule: rule.why for rule in self._inspection.unjudged if "Traceback" in rule.why}
        for rule in broken.keys() - self._broken:
            log.error("rule %s failed: %s", rule, broken[rule])
        self._broken = set(broken)


def _key(finding: Finding) -> tuple[RuleId, str, str]:
    return finding.rule, finding.server, finding.device
