"""Which of a system's departures a run holds to."""

from scalelab.systems import Departure, active_departures


def test_what_the_user_changed_is_no_departure() -> None:
    rate = Departure("optim.learning_rate", 2.5e-4, "a paper, 2")
    objective = Departure("objective", "clm", "a paper, 3")
    fields = {"optim.learning_rate": 2e-3, "objective": "clm", "seed": 0}
    assert active_departures([rate, objective], fields) == [
        {"field": "objective", "value": "clm", "source": "a paper, 3"}
    ]
    assert active_departures([rate], fields | {"optim.learning_rate": 2.5e-4})[0]["value"] == 2.5e-4
