"""An engine whose days leave for Cassandra in seconds: ``python -m tests.support.hasty engine …``.

Processes, statements and their order are those of every engine. Shorter are the waits: until another recorder may go on
where one was killed, until a lost node has been noticed, until a minute is quiet; and pieces are small, so that a
recorder can be met between two of them.
"""

from __future__ import annotations

import sys

from engine import keeper, recorder
from engine.__main__ import main
from engine.history import session
from engine.stages import record, record_history

record.QUIET_FROM_S, record.QUIET_TO_S = 0, 60
record_history.RUNS_MAX = 10
record_history.LEASE_MS = 300
session.LOSS_NOTICED_MS = 800
keeper.RECORD_INTERVAL_MS = recorder.RECORD_INTERVAL_MS = 100

if __name__ == "__main__":
    sys.exit(main())
