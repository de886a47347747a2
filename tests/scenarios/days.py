"""The scripted days, each with its one right answer."""

from __future__ import annotations

from tests.scenarios.days_pool import POOL_DAYS
from tests.scenarios.days_quiet import QUIET_DAYS
from tests.scenarios.days_requests import REQUEST_DAYS
from tests.scenarios.days_tokens import TOKEN_DAYS

DAYS = (*REQUEST_DAYS, *POOL_DAYS, *TOKEN_DAYS, *QUIET_DAYS)
