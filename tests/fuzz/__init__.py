"""Random input for everything that reads what strangers write: `python -m tests.fuzz 60` gives each target a minute."""
