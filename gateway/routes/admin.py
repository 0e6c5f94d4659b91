"""`/admin/v1`: what the operator sees and changes. Every route needs the admin key, or a session of the dashboard."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from gateway.accounting.accounting import Accounting
from gateway.backends.base import Backend
from gateway.dashboard.access import AdminAccess
from gateway.dry_run import DryRun
from gateway.explain.records import PromptRecords
from gateway.explain.report import MissReports
from gateway.limits.limiter import Limiter
from gateway.live import Live
from gateway.normalize.modes import RuleModes
from gateway.overview import Overview
from gateway.prompts.operator import PromptOperator
from gateway.recent import RecentRequests
from gateway.routes.admin_blocks import add_block_routes
from gateway.routes.admin_cache import add_cache_routes
from gateway.routes.admin_changes import add_changes_route
from gateway.routes.admin_config import LiveConfig, add_config_routes
from gateway.routes.admin_explain import add_explain_route
from gateway.routes.admin_keys import add_key_routes, add_tenant_routes
from gateway.routes.admin_limits import add_limit_routes
from gateway.routes.admin_losses import add_losses_route
from gateway.routes.admin_normalize import add_normalize_route
from gateway.routes.admin_overview import add_overview_routes
from gateway.routes.admin_prompts import add_prompt_routes
from gateway.routes.admin_requests import add_request_routes
from gateway.routes.admin_rules import add_rule_routes
from gateway.routes.admin_savings import add_savings_route
from gateway.routes.admin_series import add_series_route
from gateway.routes.admin_usage import add_usage_route
from gateway.settings import Settings
from gateway.storage.limit_settings import LimitSettings
from gateway.storage.rule_settings import RuleSettings
from gateway.storage.store import Store
from gateway.stored_changes import StoredChanges
from gateway.template_check import TemplateVerdict


def admin_router(
    backend: Backend,
    access: AdminAccess,
    settings: Settings,
    *,
    recent: RecentRequests,
    store: Store | None,
    prompts: PromptOperator | None,
    rules: RuleSettings | None,
    limits: LimitSettings | None,
    modes: RuleModes,
    template: TemplateVerdict,
    accounting: Accounting,
    dry_run: DryRun,
    reports: MissReports,
    records: PromptRecords,
    limiter: Limiter,
    overview: Overview,
    live: Live,
) -> APIRouter:
    """Build the routes; those of a store only where there is one."""
    router = APIRouter(prefix="/admin/v1", dependencies=[Depends(access.check)])

    # Not included as routers of their own: those hide their paths, which are the labels of the metrics.
    add_overview_routes(router, overview, live, access.let_in)
    add_config_routes(router, LiveConfig(settings, backend, modes, store, template), store, rules)
    add_cache_routes(router, backend, store)
    add_block_routes(router, backend, recent, records)
    add_explain_route(router, reports, recent)
    add_savings_route(router, accounting)
    add_normalize_route(router, dry_run, backend.model_info, store)
    if store is not None:
        add_usage_route(router, store, limiter, backend)
        add_tenant_routes(router, store)
        add_key_routes(router, store)
        add_request_routes(router, store)
        add_series_route(router, store)
        add_changes_route(router, store, StoredChanges(modes))
        add_losses_route(router, accounting, store)
        if limits is not None:
            add_limit_routes(router, limits, store)
        if rules is not None:
            add_rule_routes(router, modes, rules, store)
        if prompts is not None:
            add_prompt_routes(router, prompts, store.log)
    return router
