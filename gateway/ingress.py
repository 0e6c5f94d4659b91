"""From a checked chat to a request for the engine: check, normalize, render, tokenize, fit, hash.

Pure but for the clock that a template may read; long prompts take the same way in a thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gateway.answer_room import AnswerWanted, answer_room
from gateway.auth import Identity
from gateway.backends.base import GenerationRequest, ModelInfo, Sampling
from gateway.backends.control import HashedPrompt
from gateway.canonical import Canonical, canonical_form
from gateway.chat_request import ChatRequest, PromptReference
from gateway.context.asked import ContextAsked
from gateway.context.editor import ContextEditor
from gateway.context.estimate import estimated_tokens
from gateway.context.shortening import LongChat, Prompt, Run, Sender, shorten
from gateway.context.summary import Lacks, Summary
from gateway.conversation import Conversation
from gateway.errors import ContextLengthError, InvalidRequestError
from gateway.normalize.memory import TurnMemory
from gateway.normalize.modes import RuleModes
from gateway.normalize.recollection import Recollection
from gateway.normalize.registry import RuleSet
from gateway.normalize.relocate_volatile import has_place_for_values
from gateway.normalize.rule import Mode
from gateway.prefix import PrefixHasher
from gateway.prepared import PreparedPrompt
from gateway.prompts.documents import joined_head, with_documents
from gateway.prompts.registered import RegisteredPrompts, RegisteredVersion
from gateway.prompts.registry import PromptRegistry
from gateway.rendering import PromptRenderer, RenderedPrompt, WrittenPrompt
from gateway.retention_hints import retained_of
from gateway.summary_calls import SummaryCalls
from gateway.threads import PromptThreads
from gateway.tokenizer import TokenArray
from gateway.tools.reading import AnswerForm

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request, and where it comes from."""

    request_id: str
    chat: ChatRequest
    identity: Identity
    model: ModelInfo
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SentTokens:
    """The tokens that a chat would be sent with."""

    token_ids: TokenArray
    num_original: int | None = None
    """So many it would have with nothing left out of it; None: neither the operator nor the client wants that."""


class Ingress:
    """Prepares prompts for one served model."""

    def __init__(
        self,
        modes: RuleModes,
        renderer: PromptRenderer,
        hasher: PrefixHasher,
        threads: PromptThreads,
        prompts: PromptRegistry | None = None,
        memory: TurnMemory | None = None,
        form: AnswerForm = AnswerForm(),  # noqa: B008 -- frozen
        editor: ContextEditor | None = None,
        summaries: SummaryCalls | None = None,
    ) -> None:
        self._modes = modes
        self._renderer = renderer
        self._hasher = hasher
        self._threads = threads
        self._prompts = prompts
        self._memory = memory or TurnMemory()
        self._form = form
        self._editor = editor or ContextEditor(estimated_tokens, self._memory)
        self._summaries = summaries

    async def prepare(
        self, request_id: str, chat: ChatRequest, *, route: str, identity: Identity, model: ModelInfo
    ) -> PreparedPrompt:
        """Prepare one chat that came by a route.

        Raises: InvalidRequestError: the template refuses it; ContextLengthError: it does not fit; NotFoundError: it
        names a prompt or a document that is not registered for this tenant.
        """
        named = None if chat.prompt is None else self._named(chat.prompt, identity)
        documented = with_documents(chat.conversation, self._registered, identity.tenant)
        conversation, num_bytes = documented.conversation, chat.num_body_bytes + documented.num_bytes
        choices = documented.choices | dict(named.compiled.choices if named else {})
        rules = self._modes.rule_set(identity.tenant, route, choices)
        identity = _narrowed(identity, chat, rules)
        slots: Mapping[str, str] = {}
        if named is not None and chat.prompt is not None:
            moves = rules.mode_of("relocate_volatile") is Mode.ON and has_place_for_values(conversation)
            slots = chat.prompt.variables if moves else {}
            conversation = named.compiled.before(conversation, chat.prompt.variables, open_slots=moves)
            num_bytes += len(named.version.canonical)
        is_as_sent = named is None and not documented.documents
        conversation = conversation if is_as_sent else self._renderer.fit_head(conversation)
        self._renderer.check(conversation)
        memory = Recollection(self._memory, identity.scope)
        canonical = await self._threads.run(num_bytes, canonical_form, rules, conversation, memory, slots)
        if is_as_sent and self._prompts is not None:
            self._prompts.see(conversation, canonical.conversation, identity)
        asked = _Asked(request_id, chat, identity, model, num_bytes)
        try:
            await self._join(documented.public_head(named), asked)
            made = await self._shortened(asked, canonical, rules)
        except ContextLengthError as error:
            raise documented.too_long(error) from error
        return made if named is None else replace(made, prompt_id=named.prompt.id)

    async def _shortened(self, asked: _Asked, canonical: Canonical, rules: RuleSet) -> PreparedPrompt:
        """Prepare what its client's wishes and then the policy leave of a chat."""
        wanted, identity, window = asked.chat, asked.identity, asked.model.max_model_len

        async def attempt(conversation: Conversation, *, is_last: bool) -> Prompt[PreparedPrompt]:  # noqa: ARG001
            made = await self._made(asked, canonical.sent_as(conversation))
            return Prompt(made, len(made.request.token_ids))

        async def summarize(lacks: Lacks) -> Summary:
            assert self._summaries is not None
            return await self._summaries.write(lacks, asked.chat, prepare)

        def prepare(chat: ChatRequest) -> Awaitable[PreparedPrompt]:
            between = replace(asked, request_id=f"{asked.request_id}-summary", chat=chat)
            return self._made(between, canonical.sent_as(chat.conversation))

        chat = LongChat(canonical.conversation, wanted.context, rules, identity.scope, window, wanted.reserved_tokens)
        sender = Sender(self._run(asked.num_bytes), attempt, summarize if self._summaries else None)
        sent = await shorten(chat, self._editor, sender)
        return replace(sent.prompt.made, context=sent.report)

    async def _made(self, asked: _Asked, canonical: Canonical) -> PreparedPrompt:
        num_bytes, identity, longest = asked.num_bytes, asked.identity, asked.model.max_model_len
        written, num_new = await self._threads.run(num_bytes, self._write, canonical, identity, longest)
        return await self._threads.run(num_bytes, self._prepare, asked, canonical, written, num_new_chars=num_new)

    async def prepare_plain(
        self,
        request_id: str,
        tokenize: Callable[[], Sequence[TokenArray]],
        options: ChatRequest,
        *,
        route: str,
        identity: Identity,
        model: ModelInfo,
    ) -> PreparedPrompt:
        """Prepare prompts that are no chats, at least one; of the options, what is said does not count.

        Raises: ContextLengthError: it does not fit.
        """
        identity = _narrowed(identity, options, self._modes.rule_set(identity.tenant, route, None))
        arguments = (request_id, tokenize, options, identity, model)
        num_bytes = options.num_body_bytes
        return await self._threads.run(num_bytes, self._prepare_plain, *arguments, num_new_chars=num_bytes)

    async def sent_tokens(
        self,
        conversation: Conversation,
        num_bytes: int,
        *,
        route: str,
        identity: Identity,
        model: ModelInfo,
        context: ContextAsked = ContextAsked(),  # noqa: B008 -- frozen
    ) -> SentTokens:
        """Give the tokens that a chat would be sent with, however many they are, if no length of its answer is given.

        Raises: InvalidRequestError: the template refuses it; NotFoundError: it names a document that is not registered
        for this tenant.
        """
        documented = with_documents(conversation, self._registered, identity.tenant).fitted(self._renderer)
        conversation, num_bytes = documented.conversation, num_bytes + documented.num_bytes
        self._renderer.check(conversation)
        rules = self._modes.rule_set(identity.tenant, route, documented.choices)
        memory = Recollection(self._memory, identity.scope)
        whole = await self._threads.run(num_bytes, canonical_form, rules, conversation, memory, {})

        async def attempt(conversation: Conversation, *, is_last: bool) -> Prompt[TokenArray]:
            token_ids = await self._token_ids(whole.sent_as(conversation), num_bytes, identity)
            if not is_last:
                answer_room(len(token_ids), AnswerWanted(), "messages", model.max_model_len)
            return Prompt(token_ids, len(token_ids))

        chat = LongChat(whole.conversation, context, rules, identity.scope, model.max_model_len, None)
        sent = await shorten(chat, self._editor, Sender(self._run(num_bytes), attempt))
        if sent.report is None or sent.report.mode is not Mode.ON:
            return SentTokens(sent.prompt.made)
        return SentTokens(sent.prompt.made, len(await self._token_ids(whole, num_bytes, identity)))

    def _run(self, num_bytes: int) -> Run:
        """Say where what looks at a chat's texts is done: it counts their tokens."""

        async def run(work: Callable[[], _T], /) -> _T:
            return await self._threads.run(num_bytes, work, num_new_chars=num_bytes)

        return run

    async def _token_ids(self, canonical: Canonical, num_bytes: int, identity: Identity) -> TokenArray:
        written, num_new = await self._threads.run(num_bytes, self._write, canonical, identity, None)
        arguments = (written, canonical, identity)
        return (await self._threads.run(num_bytes, self._tokenize, *arguments, num_new_chars=num_new)).token_ids

    def _write(self, canonical: Canonical, identity: Identity, max_model_len: int | None) -> tuple[WrittenPrompt, int]:
        """Render, and tell how many characters are to be tokenized."""
        written = self._renderer.write(canonical.conversation, max_model_len=max_model_len)
        return written, self._renderer.num_new_chars(written, tenant=identity.tenant)

    def _tokenize(self, written: WrittenPrompt, canonical: Canonical, identity: Identity) -> RenderedPrompt:
        return self._renderer.tokenize(written, tenant=identity.tenant, spans=canonical.written_ids)

    def _named(self, reference: PromptReference, identity: Identity) -> RegisteredVersion:
        return self._registered.find(reference, identity.tenant)

    async def _join(self, entries: Sequence[RegisteredVersion], asked: _Asked) -> None:
        """See to it that tenants share what stands at the start of their prompts, where that is several public texts."""
        registered, num_bytes = self._registered, asked.num_bytes
        if registered.may_join(entries):
            arguments = (entries, self._renderer, asked.model.max_model_len)
            registered.join(
                entries, await self._threads.run(num_bytes, joined_head, *arguments, num_new_chars=num_bytes)
            )

    @property
    def _registered(self) -> RegisteredPrompts:
        return self._prompts.registered if self._prompts else RegisteredPrompts()

    def _prepare(self, asked: _Asked, canonical: Canonical, written: WrittenPrompt) -> PreparedPrompt:
        chat, identity, model = asked.chat, asked.identity, asked.model
        rendered = self._tokenize(written, canonical, identity)
        token_ids = rendered.token_ids
        if not len(token_ids):
            raise InvalidRequestError(
                "messages: the model's chat template made an empty prompt of them", param="messages"
            )
        conversation = canonical.conversation
        reading = self._form.reading(chat.tool_choice, conversation.tools, rendered.ending, chat.structure)
        request, prompt_id = self._request(asked.request_id, token_ids, chat, "messages", identity, model)
        if reading is not None and (structure := reading.structure) is not None:
            sampling = replace(request.sampling, grammar=structure.grammar, grammar_field=structure.field)
            request = replace(request, sampling=sampling)
        retained = retained_of(chat.retention, request, rendered, conversation, model.block_size)
        return PreparedPrompt(
            request, identity, canonical.origin, rendered, prompt_id, canonical.next_turn, reading, retained
        )

    def _prepare_plain(
        self,
        request_id: str,
        tokenize: Callable[[], Sequence[TokenArray]],
        options: ChatRequest,
        identity: Identity,
        model: ModelInfo,
    ) -> PreparedPrompt:
        prompts = tokenize()
        made = [
            self._request(
                f"{request_id}-{number}" if number else request_id,
                token_ids,
                options,
                f"prompt[{number}]" if len(prompts) > 1 else "prompt",
                identity,
                model,
            )
            for number, token_ids in enumerate(prompts)
        ]
        (request, prompt_id), *others = made
        return PreparedPrompt(request, identity, prompt_id=prompt_id, more=tuple(other for other, _ in others))

    def _request(
        self,
        request_id: str,
        token_ids: TokenArray,
        chat: ChatRequest,
        field: str,
        identity: Identity,
        model: ModelInfo,
    ) -> tuple[GenerationRequest, str | None]:
        """Make the request, and name the registered prompt that it begins with; `field` is where the tokens came from."""
        sampling = Sampling(
            max_tokens=answer_room(len(token_ids), chat, field, model.max_model_len),
            temperature=chat.temperature,
            top_p=chat.top_p,
            top_k=chat.top_k,
            seed=chat.seed,
            ignore_eos=chat.ignore_eos,
            min_p=chat.min_p,
            logit_bias=chat.logit_bias,
            repetition_penalty=chat.repetition_penalty,
            presence_penalty=chat.presence_penalty,
            frequency_penalty=chat.frequency_penalty,
            num_logprobs=chat.num_logprobs,
            grammar=None if chat.structure is None else chat.structure.grammar,
            grammar_field="grammar" if chat.structure is None else chat.structure.field,
            num_prompt_logprobs=chat.num_prompt_logprobs,
            n=chat.n,
        )
        heads = self._registered.heads
        request = self._hasher.request(
            request_id,
            token_ids,
            sampling,
            identity=identity,
            model=model,
            num_public_tokens=heads.num_public_tokens(token_ids),
        )
        begins_with = heads.match(token_ids, identity.tenant)
        return request, begins_with.prompt_id if begins_with else None

    def hash_prompt(self, conversation: Conversation, identity: Identity, model: ModelInfo) -> HashedPrompt:
        """Render, tokenize and hash a conversation as if it were to be sent.

        Raises: InvalidRequestError: the template refuses it; ContextLengthError: it is far too long.
        """
        rendered = self._renderer.render(conversation, tenant=identity.tenant, max_model_len=model.max_model_len)
        num_public_tokens = self._registered.heads.num_public_tokens(rendered.token_ids)
        return self._hasher.prompt(
            rendered.token_ids, identity=identity, model=model, num_public_tokens=num_public_tokens
        )


def _narrowed(identity: Identity, chat: ChatRequest, rules: RuleSet) -> Identity:
    """Give a client the cache of its own that it asks for, where the operator has switched off that this is dropped."""
    is_honoured = chat.cache_salt is not None and rules.mode_of("overwrite_client_salt") is Mode.OFF
    return replace(identity, salt=chat.cache_salt) if is_honoured else identity
