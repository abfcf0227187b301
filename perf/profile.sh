#!/usr/bin/env bash
# A flame graph of an executor in a peak, Python and native frames together: perf/profile.sh [RUNS] [FILE.svg]
# Sampling stops the process for a moment each time, so what the bench prints meanwhile is no measurement.
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/secondzero bench peak --alone --runs "${1:-30000}" --profile "${2:-perf/peak.svg}"
