"""The worker of the package's README, as it stands there, run by the command that stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.wait import until
from tests.support.work_hub import WorkHub

README = (Path(__file__).parent.parent.parent / "client" / "README.md").read_text()


def test_the_worker_runs_its_functions(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(# reports_worker.py.*?)```", README, re.DOTALL)
    (tmp_path / "reports_worker.py").write_text(block)
    program, *arguments = block.partition("\n")[0].partition(": ")[2].split()
    with WorkHub() as hub:
        environment = {**os.environ, "SECONDZERO_URL": hub.url, "SECONDZERO_API_KEY": "sz_x"}
        command = [str(Path(sys.executable).parent / program), *arguments]
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL) as process:
            try:
                daily = hub.put("reports.daily", {"top": 10})
                mail, away, nobody = (
                    hub.put("reports.mail", payload) for payload in ({"to": "x"}, {"to": "x", "server": "away"}, {})
                )
                until(lambda: all(hub.ends(token) for token in (daily, mail, away, nobody)))
            finally:
                process.terminate()
        assert process.returncode == 0
    assert hub.ends(daily) == [("complete", {"result": {"pages": 10}})]
    assert hub.ends(mail) == [("complete", {"result": None})]
    assert hub.ends(away)[0][1]["retry_after"] == "5m"
    assert hub.ends(nobody)[0][1]["retryable"] is False
