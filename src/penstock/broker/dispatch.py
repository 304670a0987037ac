"""Decodes each request, calls its handler and encodes the response. Start reading the broker here.

A handler is a plain function. It returns its response, or a future of the response if it must wait,
or None if the protocol defines no response (acks=0). An exception that a handler raises becomes an
error response. If the response has no top-level error code, the handler module's `refuse` function
builds it.

A produce request whose layout this connection has sent before takes the fast path
(`produce_fast_path`). The outcome is the same, but the request is not decoded completely.

If there are client quotas, each request is measured, and its response tells the throttle time
(`access.quotas`).

Requests of one connection are served one at a time, so a read sees the writes that were sent before
it. The only overlap is between produce requests: the next one may begin while earlier ones wait for
their commit, once the batches of the earlier ones are appended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from importlib import import_module
from struct import Struct
from types import ModuleType
from typing import Final

from penstock.broker.access.quotas import ConnectionMeter, RequestMeter
from penstock.broker.audit.changes import AUDITED
from penstock.broker.context import RequestContext, Services, spawned
from penstock.broker.cooperative_yield import slices_of
from penstock.broker.error_codes import EXPECTED_ERRORS, code_of
from penstock.broker.handled_apis import CONSUMER_GROUP_APIS, HANDLED, SHARE_GROUP_APIS
from penstock.broker.handlers.audited_requests import handle_audited
from penstock.broker.handlers.large_requests import free
from penstock.broker.identity import Identity
from penstock.broker.partitions.produce_fast_path import ProduceFastPath, Served, throttled
from penstock.net.session import Answer, Part, Peer
from penstock.wire.api import ApiKey, advertised, served
from penstock.wire.codec import (
    RequestHeader,
    UnsupportedRequest,
    decode_request,
    encode_response,
    prepare,
    response_class,
)
from penstock.wire.errors import ErrorCode, ProtocolError
from penstock.wire.messages import ApiVersionsResponse, ProduceRequest
from penstock.wire.messages.base import Buffer, Request, Response

_log = logging.getLogger(__name__)

_SHORTEST: Final = 10
"""Size of the shortest request header. A produce request is always longer."""
_PRODUCE: Final = int(ApiKey.PRODUCE)
_start: Final = Struct(">hhi").unpack_from
"""Reads the API key, the version and the correlation id."""
_key: Final = Struct(">h").unpack_from

Handler = Callable[[Request, RequestContext], Response | asyncio.Future[Response] | None]


def load_handlers() -> None:
    """Loads the handlers and codecs that brokers serve by default, so that no request waits."""
    for api_key, module in (HANDLED | CONSUMER_GROUP_APIS | SHARE_GROUP_APIS).items():
        import_module(module)
        prepare(api_key)


class Dispatcher:
    """Finds the handler of an API. Handlers are loaded on first use, to keep startup fast."""

    def __init__(self, consumer_groups: bool = True, share_groups: bool = True) -> None:
        self._modules: dict[int, ModuleType] = {}
        self._handlers: dict[int, Handler] = {}
        switched = (CONSUMER_GROUP_APIS, consumer_groups), (SHARE_GROUP_APIS, share_groups)
        self.apis = frozenset(HANDLED).union(*(apis for apis, is_on in switched if is_on))
        self.served = served(self.apis)

    def handler(self, api_key: int) -> Handler:
        handler = self._handlers.get(api_key)
        if handler is None:
            handler = self._module(api_key).handle
            if api_key in AUDITED:
                handler = partial(handle_audited, handler, self.refuse)
            self._handlers[api_key] = handler
        return handler

    def refuse(self, request: Request, version: int, error: Exception) -> Response:
        """Returns the error response for a request that failed as a whole."""
        code = code_of(error)
        refuse = getattr(self._module(request.API_KEY), "refuse", None)
        if refuse is not None:
            refused: Response = refuse(request, version, code)
            return refused
        response = response_class(ApiKey(request.API_KEY))()
        if not hasattr(response, "error_code"):
            raise ProtocolError(f"{type(request).__name__} failed: {error}") from error
        response.error_code = code
        if hasattr(response, "error_message"):
            response.error_message = str(error)
        return response

    def _module(self, api_key: int) -> ModuleType:
        module = self._modules.get(api_key)
        if module is None:
            name = (HANDLED | CONSUMER_GROUP_APIS | SHARE_GROUP_APIS)[ApiKey(api_key)]
            module = self._modules[api_key] = import_module(name)
        return module


class BrokerSession:
    """Serves the requests of one connection."""

    __slots__ = (
        "_answered",
        "_counters",
        "_dispatcher",
        "_fast_path",
        "_identity",
        "_meter",
        "_now",
        "_overlaps",
        "_peer",
        "_quotas",
        "_services",
        "_slicing",
        "_waited",
    )

    def __init__(
        self, services: Services, dispatcher: Dispatcher, peer: Peer, identity: Identity
    ) -> None:
        self._services = services
        self._counters = counters = services.counters.requests
        self._answered, self._waited = counters.answered, counters.waited
        self._now = services.counters.now
        self._dispatcher = dispatcher
        self._slicing = services.env.slicing
        self._fast_path = ProduceFastPath(
            services.replicas.get, services.env.clock.wall_ms, services.authorization, identity
        )
        self._peer = peer
        peer.turn.tenant = identity.tenant
        self._identity = identity
        self._quotas = services.quotas
        self._meter = ConnectionMeter(services.quotas, peer, identity.principal)
        self._overlaps = False
        """The last request was a produce request, and its batches are appended."""

    def may_overlap(self, frame: memoryview) -> bool:
        return self._overlaps and len(frame) > _SHORTEST and _key(frame)[0] == _PRODUCE

    def on_frame(self, frame: memoryview, borrowed: bool = False) -> Answer:
        refusal: Exception | None = None
        if len(frame) > _SHORTEST:
            api_key, version, correlation_id = _start(frame)
            if self._quotas.current is not None:
                return self._serve_measured(frame, borrowed)
            if api_key == _PRODUCE:
                # Only some requests are measured: see `counters.Sampled`.
                left = self._answered.left
                if left:
                    answer = self._fast_path.serve(frame, version, correlation_id)
                    if answer.__class__ is tuple:
                        self._answered.left = left - 1
                        self._overlaps = True
                        return answer
                else:
                    answer = self._serve_timed(frame, version, correlation_id)
                    if answer.__class__ is tuple:
                        return answer
                if isinstance(answer, asyncio.Future):
                    self._overlaps = True
                    self._watch(answer)
                    return answer
                if isinstance(answer, Exception):
                    # The handler answers the error, or appends the batch later: it may have to be
                    # verified first, checked on a thread, or wait for this broker to lead.
                    refusal = answer
        return self._serve_decoded(memoryview(bytearray(frame)) if borrowed else frame, refusal)

    def _serve_measured(self, frame: memoryview, borrowed: bool) -> Answer:
        """Serves a request and measures it for the client's quotas."""
        api_key, version, correlation_id = _start(frame)
        meter = self._meter.begin(frame, api_key, version)
        refusal: Exception | None = None
        if api_key == _PRODUCE:
            began = self._now()
            if meter is not None:
                meter.record_produce(len(frame))
            answer = self._fast_path.serve(frame, version, correlation_id)
            if isinstance(answer, tuple | asyncio.Future):
                self._overlaps = True
                seconds = self._now() - began
                if isinstance(answer, tuple):
                    self._counters.observe(api_key, seconds)
                else:
                    self._watch(answer)
                if meter is None:
                    return answer
                meter.spend(seconds)
                return throttled(answer, meter.finish())
            if isinstance(answer, Exception):
                refusal = answer
        owned = memoryview(bytearray(frame)) if borrowed else frame
        return self._serve_decoded(owned, refusal, meter)

    def _serve_timed(self, frame: memoryview, version: int, correlation_id: int) -> Served:
        began = self._now()
        answer = self._fast_path.serve(frame, version, correlation_id)
        if answer.__class__ is tuple:
            self._answered.end(self._now() - began, self._answered.begin())
            self._overlaps = True
        return answer

    def _watch(self, answer: Answer) -> None:
        """Measures how long a fast-path response waits for its commit, if it is to be sampled."""
        waited, now = self._waited, self._now
        if waited.left:
            waited.left -= 1
        elif isinstance(answer, asyncio.Future):
            began, stands_for = now(), waited.begin()
            answer.add_done_callback(lambda _: waited.end(now() - began, stands_for))

    def _serve_decoded(
        self, frame: memoryview, refusal: Exception | None, meter: RequestMeter | None = None
    ) -> Answer:
        """Serves a request through its handler. `refusal` is the error of the fast path."""
        began = self._now()
        self._overlaps = False
        if len(frame) > self._slicing.frame_bytes and (
            len(frame) > self._slicing.produce_bytes or _key(frame)[0] != _PRODUCE
        ):
            work = self._serve_large(frame, began, meter)
            return spawned(self._services, work, meter, self._peer.turn)
        try:
            header, request = decode_request(frame, self._dispatcher.served)
        except UnsupportedRequest as error:
            return _unsupported(error)
        context = RequestContext(
            self._services,
            header.api_version,
            header.client_id or "",
            self._identity,
            header.api_key,
            header.correlation_id,
        )
        context.refusal = refusal
        context.meter = meter
        context.turn = self._peer.turn
        try:
            response = self._dispatcher.handler(header.api_key)(request, context)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - every failure has an answer
            response = self._refuse(request, header, error)
        if isinstance(request, ProduceRequest):
            self._fast_path.learn(frame, header, request)
            self._overlaps = context.is_appended
        elif context.is_replica:
            self._peer.is_replica = True
        if meter is not None:
            meter.spend(self._now() - began)
        if isinstance(response, asyncio.Future):
            if meter is not None and isinstance(request, ProduceRequest):
                meter.finish()  # Later produce requests may begin before this one is answered.
            if context.is_large:
                work = self._encode_large(request, header, context, response, began)
                return spawned(self._services, work, meter, self._peer.turn)
            return self._later(request, header, context, response, began)
        response = _throttled(response, context)
        encoded = None if response is None else _encode(response, header)
        self._counters.observe(header.api_key, self._now() - began)
        return encoded

    async def _serve_large(
        self, frame: memoryview, began: float, meter: RequestMeter | None
    ) -> Sequence[Buffer] | None:
        """Decodes a large frame on a thread, then serves it."""
        decode = partial(decode_request, frame, self._dispatcher.served)
        try:
            header, request = await self._services.env.executor.run(decode)
        except UnsupportedRequest as error:
            return _unsupported(error)
        context = RequestContext(
            self._services,
            header.api_version,
            header.client_id or "",
            self._identity,
            header.api_key,
            header.correlation_id,
        )
        context.is_large = True
        context.meter = meter
        context.turn = self._peer.turn
        response: Response | asyncio.Future[Response] | None
        try:
            response = self._dispatcher.handler(header.api_key)(request, context)
        except ProtocolError:
            raise
        except Exception as error:  # noqa: BLE001 - every failure has an answer
            response = self._refuse(request, header, error)
        if isinstance(request, ProduceRequest):
            self._fast_path.learn(frame, header, request)
        elif context.is_replica:
            self._peer.is_replica = True
        return await self._encode_large(request, header, context, response, began)

    async def _encode_large(
        self,
        request: Request,
        header: RequestHeader,
        context: RequestContext,
        response: Response | asyncio.Future[Response] | None,
        began: float,
    ) -> Sequence[Buffer] | None:
        """Waits for the response, and encodes it on a thread if it is large.

        If a file span in the response (`storage.spans`) is truncated in the meantime, the
        connection is closed, just as when that happens while a slow peer reads the response."""
        if isinstance(response, asyncio.Future):
            try:
                response = await response
            except ProtocolError:
                raise
            except Exception as error:  # noqa: BLE001 - every failure has an answer
                response = self._refuse(request, header, error)
        response = _throttled(response, context)
        encoded = None
        if response is not None and not context.is_large:
            encoded = _encode(response, header)
        elif response is not None:
            encoded = await self._services.env.executor.run(partial(_encode, response, header))
            slices = slices_of(self._services.env)
            await free(response, slices)
            await free(request, slices)
        self._counters.observe(header.api_key, self._now() - began)
        return encoded

    def on_closed(self) -> None:
        """Ends share sessions. Other state of a client outlives its connection."""
        self._services.shares.on_closed(self._peer.turn)

    def _later(
        self,
        request: Request,
        header: RequestHeader,
        context: RequestContext,
        response: asyncio.Future[Response],
        began: float,
    ) -> asyncio.Future[Sequence[Part] | None]:
        answer: asyncio.Future[Sequence[Part] | None] = response.get_loop().create_future()

        def finish(done: asyncio.Future[Response]) -> None:
            if answer.done():
                return
            if done.cancelled():
                answer.cancel()
                return
            error = done.exception()
            if isinstance(error, ProtocolError) or not isinstance(error, Exception | None):
                answer.set_exception(error)
                return
            if context.is_large:  # Some handlers know it only when they have the response.
                work = self._encode_large(request, header, context, done, began)
                encoded = spawned(self._services, work, context.meter, self._peer.turn)
                encoded.add_done_callback(partial(_copy_outcome, answer))
                return
            try:
                result = done.result() if error is None else self._refuse(request, header, error)
                told = _throttled(result, context)
                answer.set_result(None if told is None else _encode(told, header))
            except Exception as mistake:  # noqa: BLE001 - the connection logs it
                answer.set_exception(mistake)
            self._counters.observe(header.api_key, self._now() - began)

        response.add_done_callback(finish)
        return answer

    def _refuse(self, request: Request, header: RequestHeader, error: Exception) -> Response:
        if not isinstance(error, EXPECTED_ERRORS):
            _log.error("%s failed", type(request).__name__, exc_info=error)
        self._counters.refused(header.api_key, code_of(error))
        return self._dispatcher.refuse(request, header.api_version, error)


def _copy_outcome(
    answer: asyncio.Future[Sequence[Part] | None], encoded: asyncio.Future[Sequence[Part] | None]
) -> None:
    if answer.done():
        return
    if encoded.cancelled():
        answer.cancel()
    elif (error := encoded.exception()) is not None:
        answer.set_exception(error)
    else:
        answer.set_result(encoded.result())


def _throttled(response: Response | None, context: RequestContext) -> Response | None:
    """Throttles the client if it is over a quota. Returns the response with the throttle time."""
    if context.meter is None or context.is_replica:
        return response
    throttle_ms = context.meter.finish()
    if response is None or not throttle_ms or not hasattr(response, "throttle_time_ms"):
        return response
    told = copy(response)  # Some handlers return the same response more than once.
    told.throttle_time_ms = throttle_ms
    return told


def _encode(response: Response, header: RequestHeader) -> Sequence[Buffer]:
    try:
        return encode_response(response, header.api_version, header.correlation_id)
    except ProtocolError as error:
        # The request was valid, so this is a bug in a handler. A ProtocolError would blame the
        # client.
        raise RuntimeError(
            f"{type(response).__name__} cannot be encoded in version {header.api_version}"
        ) from error


def _unsupported(error: UnsupportedRequest) -> Sequence[Buffer]:
    """Answers an ApiVersions request of an unsupported version; raises the error for other APIs.

    The response has version 0, so that the client can ask again with a lower version."""
    header = error.header
    if header.api_key != ApiKey.API_VERSIONS:
        raise error
    response = ApiVersionsResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=advertised([ApiKey.API_VERSIONS])
    )
    return encode_response(response, 0, header.correlation_id)
