"""What is kept running is started again, slower and slower while it keeps failing."""

from engine.errors import OperatorError
from engine.local.kept import LIVED_WELL_MS, PAUSE_MS, PAUSE_MS_MAX, Kept


class Patient:
    """Something that can be ended and that may refuse to start."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.starts = 0
        self.refuses = False
        self.said: list[str] = []
        self.kept = Kept("the patient", self.start, lambda: self.status, self.said.append)

    def start(self) -> None:
        self.starts += 1
        if self.refuses:
            raise OperatorError("no room")
        self.status = None


def test_what_runs_is_left_alone():
    patient = Patient()
    patient.kept.look(1_000_000)
    assert (patient.starts, patient.said) == (0, [])


def test_what_ended_is_started_again_after_its_pause():
    patient = Patient()
    patient.status = -9
    patient.kept.look(1_000_000)
    patient.kept.look(1_000_000 + PAUSE_MS - 1)
    assert patient.starts == 0
    patient.kept.look(1_000_000 + PAUSE_MS)
    assert patient.starts == 1
    assert patient.said == ["the patient ended with status -9; starting it again in 0.1 s"]


def test_the_pause_doubles_to_its_maximum_and_is_short_again_after_a_good_life():
    patient, now_ms, pauses = Patient(), 1_000_000, []
    patient.status = 1
    patient.kept.look(now_ms)
    for _ in range(10):
        began_ms, starts = now_ms, patient.starts
        while patient.starts == starts:
            now_ms += PAUSE_MS
            patient.kept.look(now_ms)
        pauses.append(now_ms - began_ms)
        patient.status = 1
        patient.kept.look(now_ms)
    assert pauses[:4] == [PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS, 8 * PAUSE_MS]
    assert pauses[-1] == PAUSE_MS_MAX
    now_ms += PAUSE_MS_MAX
    patient.kept.look(now_ms)
    patient.status = 1
    patient.kept.look(now_ms + LIVED_WELL_MS)
    assert patient.said[-1].endswith(" in 0.1 s")


def test_a_refusal_to_start_is_said_and_tried_again():
    patient = Patient()
    patient.status, patient.refuses = 1, True
    patient.kept.look(1_000_000)
    patient.kept.look(1_000_000 + PAUSE_MS)
    assert patient.said[-1] == "the patient did not start: no room; starting it again in 0.2 s"
    patient.refuses = False
    patient.kept.look(1_000_000 + 3 * PAUSE_MS)
    assert (patient.starts, patient.status) == (2, None)
