"""Builds the application: wires what it is given, owns nothing that outlives it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI
from starlette.routing import BaseRoute, Route

from gateway.accounting.accounting import Accounting
from gateway.accounting.losses import Losses
from gateway.auth import Authenticator, KeyStore, NoKeys
from gateway.backends.base import Backend
from gateway.chat import PATH as CHAT_PATH
from gateway.chat import ChatCompletions
from gateway.completions import PATH as COMPLETIONS_PATH
from gateway.completions import Completions
from gateway.context.editor import ContextEditor
from gateway.context.estimate import TokenCounter
from gateway.context.rule import is_on_somewhere
from gateway.dashboard.routes import Dashboard
from gateway.dashboard.session import Sessions
from gateway.direct import DirectApp
from gateway.dry_run import DryRun
from gateway.explain.diagnostics import Diagnostics
from gateway.explain.records import PromptRecords
from gateway.explain.report import MissReports
from gateway.ingress import Ingress
from gateway.limits.limiter import Limiter
from gateway.limits.limits import LimitBook
from gateway.lookup import Lookup
from gateway.messages import COUNT_PATH, Messages, TokenCount
from gateway.messages import PATH as MESSAGES_PATH
from gateway.metrics import GatewayMetrics
from gateway.model_files import ModelFiles
from gateway.normalize.memory import TurnMemory
from gateway.normalize.modes import RuleModes
from gateway.normalize.registry import RuleRegistry
from gateway.normalize.rule import Mode
from gateway.normalize.rules import built_in_rules
from gateway.openapi.admin import ADMIN
from gateway.openapi.dashboard import DASHBOARD
from gateway.openapi.document import description_route
from gateway.openapi.endpoints import ENDPOINTS
from gateway.overview import EngineBehind, Overview
from gateway.prefix import PrefixHasher
from gateway.prompts.compiler import PromptCompiler
from gateway.prompts.condition import conditions
from gateway.prompts.operator import PromptOperator
from gateway.prompts.registered import RegisteredPrompts
from gateway.prompts.registry import PromptRegistry
from gateway.prompts.warming import Warmer
from gateway.recent import RecentRequests
from gateway.rendering import PromptRenderer
from gateway.responses import PATH as RESPONSES_PATH
from gateway.responses import Responses
from gateway.retention_hints import RetentionHints
from gateway.routes.admin import admin_router
from gateway.routes.admin_overview import live_overview
from gateway.routes.system import SystemRoutes
from gateway.serving import PING_SECONDS, Services, Serving
from gateway.settings import Settings
from gateway.storage.limit_settings import LimitSettings
from gateway.storage.rule_settings import RuleSettings
from gateway.storage.store import Store
from gateway.summary_calls import SummaryCalls
from gateway.template import ChatTemplate
from gateway.template_check import check_template, log_verdict
from gateway.threads import PromptThreads
from gateway.tokenizer import Tokenizer
from gateway.tokens import TokenEndpoints
from gateway.tools.reading import AnswerForm
from gateway.tools.template import with_tools


def create_app(
    settings: Settings,
    backend: Backend,
    model_files: ModelFiles,
    *,
    keys: KeyStore | None = None,
    store: Store | None = None,
    rules: RuleRegistry | None = None,
    ping_seconds: float = PING_SECONDS,
) -> FastAPI:
    """Build one gateway.

    Args:
        settings: host and admin key decide who may ask.
        backend: started and stopped with the application.
        model_files: tokenizer and template are read now.
        keys: API keys; by default those of the store, else there are none.
        store: opened and prepared; started and stopped with the application. None: nothing is kept.
        rules: the normalizer; by default the built-in rules.
        ping_seconds: longest silence in a stream.

    Raises: ChatTemplateError: the model's template does not compile; ModelFilesError: its tokenizer cannot be read.
    """
    metrics = GatewayMetrics()
    if store is not None:
        metrics.watch_store(store)
    keys = keys or (store.ring if store else NoKeys())
    authenticator = Authenticator(keys, host=settings.host, admin_key=settings.admin_key)
    tokenizer = Tokenizer(model_files.tokenizer_file)
    special_tokens = {"bos_token": model_files.bos_token, "eos_token": model_files.eos_token}
    source = with_tools(model_files.chat_template, settings.tool_template)
    template = ChatTemplate(source, special_tokens=special_tokens)
    verdict = check_template(source, special_tokens)
    log_verdict(verdict)
    threads = PromptThreads()
    recent, records = RecentRequests(), PromptRecords()
    modes, renderer, hasher = (
        RuleModes(rules or built_in_rules(Mode(settings.context_policy))),
        PromptRenderer(template, tokenizer),
        PrefixHasher(),
    )
    limit_book = LimitBook(settings.default_limits)
    prompts = rule_settings = limit_settings = None
    if store is not None:
        limit_settings = LimitSettings(store.database, limit_book)
        store.keep_fresh(limit_settings.refresh)
        rule_settings = RuleSettings(store.database, modes)
        store.keep_fresh(rule_settings.refresh)  # before the prompts, whose canonical form follows from the modes
        compiler = PromptCompiler(modes, renderer)
        warmer = Warmer(backend, budget_seconds=settings.warm_budget)
        registry = PromptRegistry(
            store.database, compiler, modes, warmer, backend=backend, hasher=hasher, model_name=model_files.name
        )
        store.keep_fresh(registry.refresh)
        prompts = PromptOperator(
            store.database, compiler, registry, warmer, backend=backend, model_name=model_files.name
        )
    form = AnswerForm.of(
        source,
        tokenizer,
        model_files.response_template,
        tool_parser=settings.tool_parser,
        reasoning=settings.reasoning,
    )
    limiter = Limiter(limit_book, note_refusal=metrics.count_limited)
    memory = TurnMemory(max_bytes=settings.turn_memory)
    count = TokenCounter(tokenizer.encode_all)
    ingress = Ingress(
        modes,
        renderer,
        hasher,
        threads,
        prompts.registry if prompts else None,
        memory,
        form,
        ContextEditor(count, memory),
        SummaryCalls(backend, tokenizer, limiter, memory, metrics),
    )
    losses = Losses(store.minutes if store else None)
    accounting = Accounting(
        ingress.hash_prompt, special_ids=tokenizer.special_ids, sampling=settings.accounting_sampling, losses=losses
    )
    metrics.watch(accounting.savings)
    metrics.watch(losses)
    services = Services(
        model_name=model_files.name,
        backend=backend,
        ingress=ingress,
        threads=threads,
        tokenizer=tokenizer,
        authenticator=authenticator,
        limiter=limiter,
        metrics=metrics,
        recent=recent,
        accounting=accounting,
        diagnostics=Diagnostics(backend, records),
        retention=RetentionHints(backend),
        log=store.log if store else None,
        ping_seconds=ping_seconds,
    )
    tokens = TokenEndpoints(services)
    # The paths that take all the traffic are plain ASGI: no model per request, nothing of FastAPI's between.
    direct = [
        Route(CHAT_PATH, Serving(services, ChatCompletions()), methods=["POST"]),
        Route(COMPLETIONS_PATH, Serving(services, Completions(tokenizer)), methods=["POST"]),
        Route(RESPONSES_PATH, Serving(services, Responses()), methods=["POST"]),
        Route(MESSAGES_PATH, Serving(services, Messages()), methods=["POST"]),
    ]
    dashboard = Dashboard(authenticator, Sessions(settings.admin_key), store)
    routes: list[BaseRoute] = [
        Route(COUNT_PATH, Lookup(services, TokenCount(services)), methods=["POST"]),
        Route("/tokenize", Lookup(services, tokens.tokenize), methods=["POST"]),
        Route("/detokenize", Lookup(services, tokens.detokenize), methods=["POST"]),
        *SystemRoutes(backend, authenticator, metrics, model_files.name, prompts.warmer if prompts else None).routes(),
        *dashboard.routes(),
    ]
    overview = Overview(
        EngineBehind(backend, model_files.name),
        metrics,
        savings=accounting.savings,
        losses=losses,
        store=store,
        prompts=partial(conditions, prompts.registry, prompts.warmer) if prompts else lambda _: [],
        has_context_policy=partial(is_on_somewhere, modes),
        template_faults=() if verdict.is_stable else tuple(verdict.sentences()),
    )
    live = live_overview(overview)
    admin = admin_router(
        backend,
        dashboard.access,
        settings,
        recent=recent,
        store=store,
        prompts=prompts,
        rules=rule_settings,
        limits=limit_settings,
        modes=modes,
        template=verdict,
        accounting=accounting,
        dry_run=DryRun(modes, renderer, lambda: prompts.registry.registered if prompts else RegisteredPrompts(), count),
        reports=MissReports(backend, records, tokenizer, modes, shows_content=settings.store_content),
        records=records,
        limiter=limiter,
        overview=overview,
        live=live,
    )
    description = description_route(
        [*direct, *routes, *admin.routes], (*ENDPOINTS, *ADMIN, *DASHBOARD), model=model_files.name
    )
    routes.append(description)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if store is not None:
            await store.start()
        try:
            await backend.start()
            if prompts is not None:
                prompts.warmer.start()
            overview.start()
            yield
        finally:
            live.stop()
            await overview.stop()
            if prompts is not None:
                await prompts.warmer.stop()
            await backend.stop()
            threads.close()
            accounting.close()
            if store is not None:
                await store.stop()

    app = DirectApp(direct, routes, admin, metrics=metrics, lifespan=lifespan)
    app.state.accounting = accounting
    app.state.end_live = live.stop
    app.state.is_settled = prompts.warmer.is_settled if prompts else lambda: True
    return app
