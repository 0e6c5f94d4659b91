"""An admin API that answers what a test wants and remembers what was asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response


@dataclass
class Call:
    method: str
    path: str
    """As it was sent, quoted."""
    query: dict[str, str]
    body: Any
    authorization: str | None


@dataclass
class FakeAdmin:
    answers: list[Any] = field(default_factory=list)
    """Objects or responses, in turn; the last one stays."""
    calls: list[Call] = field(default_factory=list)

    def app(self) -> FastAPI:
        app = FastAPI()

        async def handle(request: Request) -> Response:
            body = await request.body()
            path = request.scope["raw_path"].decode()
            sent = await request.json() if body else None
            key = request.headers.get("authorization")
            self.calls.append(Call(request.method, path, dict(request.query_params), sent, key))
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            return answer if isinstance(answer, Response) else JSONResponse(answer)

        app.add_api_route("/{path:path}", handle, methods=["GET", "POST", "PUT", "DELETE"])
        return app


def refusal(status: int, message: str, *, param: str | None = None, code: str | None = None) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return JSONResponse({"error": error}, status, headers={"x-request-id": "req-7"})
