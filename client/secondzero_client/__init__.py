"""For tenants of Second Zero: the API, workers that run functions, receivers that let each call through once."""

from secondzero_client.calls import etag
from secondzero_client.client import AsyncClient, Client
from secondzero_client.errors import (
    ApiError,
    Conflict,
    Invalid,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    SecondZeroError,
    Unavailable,
)
from secondzero_client.fence import Fence, sqlite_fence
from secondzero_client.middleware import AsgiReceiver, WsgiReceiver
from secondzero_client.receiver import Call, Receiver, Reply
from secondzero_client.retries import RetryPolicy
from secondzero_client.runs import Fatal, Retry, Run, current_run
from secondzero_client.worker import Worker

__all__ = [
    "ApiError",
    "AsgiReceiver",
    "AsyncClient",
    "Call",
    "Client",
    "Conflict",
    "Fatal",
    "Fence",
    "Invalid",
    "NotAllowed",
    "NotFound",
    "PreconditionFailed",
    "Receiver",
    "Reply",
    "Retry",
    "RetryPolicy",
    "Run",
    "SecondZeroError",
    "Unavailable",
    "Worker",
    "WsgiReceiver",
    "current_run",
    "etag",
    "sqlite_fence",
]
