"""Builds the application in front of upstreams: wires what it is given, owns nothing that outlives it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import Route

from gateway.accounting.accounting import Accounting
from gateway.auth import Authenticator, KeyStore, NoKeys
from gateway.dashboard.access import AdminAccess
from gateway.dashboard.routes import Dashboard
from gateway.dashboard.session import Sessions
from gateway.direct import DirectApp
from gateway.dry_run import DryRun
from gateway.explain.report import MissReports
from gateway.limits.limiter import Limiter
from gateway.limits.limits import LimitBook
from gateway.model_files import ModelFiles
from gateway.normalize.memory import TurnMemory
from gateway.normalize.modes import RuleModes
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.rule import Mode, RuleClass
from gateway.normalize.rules import built_in_rules
from gateway.openapi.admin import ADMIN
from gateway.openapi.dashboard import DASHBOARD
from gateway.openapi.document import description_route
from gateway.openapi.endpoints import PROXIED
from gateway.overview import Overview
from gateway.reception import Reception
from gateway.rendering import PromptRenderer
from gateway.routes.admin_changes import add_changes_route
from gateway.routes.admin_explain import add_explain_route
from gateway.routes.admin_keys import add_key_routes, add_tenant_routes
from gateway.routes.admin_limits import add_limit_routes
from gateway.routes.admin_losses import add_losses_route
from gateway.routes.admin_normalize import add_normalize_route
from gateway.routes.admin_overview import add_overview_routes, live_overview
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
from gateway.template import ChatTemplate
from gateway.threads import PromptThreads
from gateway.tokenizer import Tokenizer
from gateway.tools.template import with_tools
from gateway.upstream.admin import add_upstream_route
from gateway.upstream.behind import UpstreamsBehind
from gateway.upstream.books import Books
from gateway.upstream.chat import INLINE_BYTES, UpstreamIngress
from gateway.upstream.endpoints import ENDPOINTS, READ_FORMS
from gateway.upstream.foresight import Foresight, upstream_model
from gateway.upstream.metrics import PredictionMetrics, UpstreamMetrics
from gateway.upstream.pool import Timeouts, UpstreamPool
from gateway.upstream.proxy import ProxyServices, Relay
from gateway.upstream.routes import UpstreamSystemRoutes


def pool_of(settings: Settings) -> UpstreamPool:
    """Make the pool that the options ask for."""
    timeouts = Timeouts(
        settings.upstream_connect_timeout, settings.upstream_first_byte_timeout, settings.upstream_idle_timeout
    )
    return UpstreamPool(settings.upstream, key=settings.upstream_key, timeouts=timeouts)


def create_upstream_app(
    settings: Settings,
    pool: UpstreamPool,
    *,
    keys: KeyStore | None = None,
    store: Store | None = None,
    rules: RuleRegistry | None = None,
) -> FastAPI:
    """Build one gateway without an engine.

    Args:
        settings: host and admin key decide who may ask.
        pool: started and stopped with the application.
        keys: API keys; by default those of the store, else there are none.
        store: opened and prepared; started and stopped with the application. None: nothing is kept.
        rules: the normalizer; by default `upstream_rules`.

    Raises: ModelFilesError, ChatTemplateError: the folder of `--tokenizer` cannot be used.
    """
    metrics = UpstreamMetrics(pool)
    if store is not None:
        metrics.gateway.watch_store(store)
    keys = keys or (store.ring if store else NoKeys())
    authenticator = Authenticator(keys, host=settings.host, admin_key=settings.admin_key)
    threads, modes = PromptThreads(from_bytes=INLINE_BYTES), RuleModes(rules or upstream_rules())
    limit_book = LimitBook(settings.default_limits)
    limiter = Limiter(limit_book, note_refusal=metrics.gateway.count_limited)
    reception = Reception(authenticator, limiter, metrics.gateway, threads, store.log if store else None)
    ingress = UpstreamIngress(modes, threads, TurnMemory(max_bytes=settings.turn_memory))
    tokenizing, model = PromptThreads(), upstream_model(len(pool.upstreams))
    renderer, books = None, None
    if settings.tokenizer is not None:
        tokenizer, renderer = _load(settings.tokenizer, settings)
        foresight = Foresight(model, renderer, tokenizing, [upstream.name for upstream in pool.upstreams])
        metrics.gateway.watch(PredictionMetrics(foresight))
        accounting = Accounting(
            foresight.hash_prompt, special_ids=tokenizer.special_ids, sampling=settings.accounting_sampling
        )
        metrics.gateway.watch(accounting.savings)
        books = Books(foresight, accounting)
        reports = MissReports(foresight, books.records, tokenizer, modes, shows_content=settings.store_content)
    services = ProxyServices(reception, pool, ingress, metrics, books)
    direct = [Route(endpoint.route, Relay(services, endpoint), methods=["POST"]) for endpoint in ENDPOINTS]
    dashboard = Dashboard(authenticator, Sessions(settings.admin_key), store)
    routes = [*UpstreamSystemRoutes(pool, authenticator, metrics).routes(), *dashboard.routes()]
    admin = _admin_router(dashboard.access, modes, limit_book, limiter, store)
    add_normalize_route(admin, DryRun(modes, renderer), lambda: model, store)
    add_upstream_route(admin, pool, books.foresight if books else None)
    if books is not None:
        add_explain_route(admin, reports, books.recent)
        add_savings_route(admin, accounting)
    overview = Overview(
        UpstreamsBehind(pool), metrics.gateway, savings=books.accounting.savings if books else None, store=store
    )
    live = live_overview(overview)
    add_overview_routes(admin, overview, live, dashboard.access.let_in)
    routes.append(description_route([*direct, *routes, *admin.routes], (*PROXIED, *ADMIN, *DASHBOARD)))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if store is not None:
            await store.start()
        try:
            await pool.start()
            overview.start()
            yield
        finally:
            live.stop()
            await overview.stop()
            await pool.close()
            threads.close()
            tokenizing.close()
            if books is not None:
                books.accounting.close()
            if store is not None:
                await store.stop()

    app = DirectApp(direct, routes, admin, metrics=metrics.gateway, lifespan=lifespan)
    app.state.end_live = live.stop
    app.state.is_settled = lambda: True
    return app


def _load(folder: Path, settings: Settings) -> tuple[Tokenizer, PromptRenderer]:
    """Read the upstreams' tokenizer and chat template.

    Raises: ModelFilesError, ChatTemplateError: they cannot be used.
    """
    files = ModelFiles.from_folder(folder, folder.name, settings.chat_template)
    special_tokens = {"bos_token": files.bos_token, "eos_token": files.eos_token}
    tokenizer = Tokenizer(files.tokenizer_file)
    source = with_tools(files.chat_template, settings.tool_template)
    return tokenizer, PromptRenderer(ChatTemplate(source, special_tokens=special_tokens), tokenizer)


def upstream_rules() -> RuleRegistry:
    """The built-in rules. Those that go by a memory of answers are off until the operator turns them on.

    No upstream tells how long its window is, so that nothing is cut to fit.
    """
    return RuleRegistry(
        [
            replace(rule, default=Mode.OFF) if rule.rule_class is RuleClass.STATEFUL else rule
            for rule in built_in_rules().rules
            if rule.rule_class is not RuleClass.CONTEXT
        ]
    )


def _admin_router(
    access: AdminAccess, modes: RuleModes, limit_book: LimitBook, limiter: Limiter, store: Store | None
) -> APIRouter:
    """Build the routes of the admin API that need no engine."""
    router = APIRouter(prefix="/admin/v1", dependencies=[Depends(access.check)])
    if store is not None:
        rules = RuleSettings(store.database, modes)
        store.keep_fresh(rules.refresh)
        limits = LimitSettings(store.database, limit_book)
        store.keep_fresh(limits.refresh)
        add_usage_route(router, store, limiter, None)
        add_tenant_routes(router, store)
        add_losses_route(router, None, store)  # what an upstream's cache could have given, nobody knows here
        add_key_routes(router, store)
        add_request_routes(router, store)
        add_series_route(router, store)
        add_changes_route(router, store, StoredChanges(modes, READ_FORMS))
        add_rule_routes(router, modes, rules, store)
        add_limit_routes(router, limits, store)
    return router
