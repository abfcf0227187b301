"""What a tenant may use and what it uses."""

from __future__ import annotations

from api.limits import JOBS_LIMIT, REQUESTS_LIMIT, limits_of
from api.requests import EMPTY_QUERY, Call
from api.responses import Answer
from api.stats import tenant_stats
from engine.rules.quota import TENANT_STARTS_LIMIT


async def usage(call: Call) -> Answer:
    """GET /v1/usage"""
    call.query(EMPTY_QUERY)
    service = call.service
    limits = limits_of(await service.tenants.tenants.get(call.tenant_id))
    used: dict[str, float] = {
        REQUESTS_LIMIT: service.rates.used(call.tenant_id, limits[REQUESTS_LIMIT]),
        JOBS_LIMIT: await service.counts.jobs(call.tenant_id),
    }
    runs, used[TENANT_STARTS_LIMIT] = await tenant_stats(call)
    return Answer({"limits": limits, "used": used, "runs": runs})
