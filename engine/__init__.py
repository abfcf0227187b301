"""Second Zero's engine: jobs planned, claimed, fired and settled at their second."""
